"""The tools that Claude Code has, to tell a name that is none."""

from collections.abc import Iterable
from difflib import get_close_matches

_TOOLS = (
    *("Bash", "CronCreate", "CronDelete", "CronList", "Edit", "EnterWorktree", "ExitWorktree", "Glob", "Grep"),
    *("ListAgents", "Monitor", "NotebookEdit", "Read", "ReportFindings", "ScheduleWakeup", "SendMessage", "Skill"),
    *("Task", "TaskCreate", "TaskGet", "TaskList", "TaskStop", "TaskUpdate", "ToolSearch", "WebFetch", "WebSearch"),
    *("Workflow", "Write"),
)
"""What Claude Code 2.1.332 says at its start that it has, of all names that it was asked for."""
_OF_A_SERVER = "mcp__"
"""What a tool of a server begins with: nobody knows these names before it runs."""


def unknown_tools(tools: Iterable[str]) -> list[str]:
    """Return each name that is no tool's, with the one that may be meant: `Raed, did you mean Read?`."""
    return [f"{tool}{_meant(tool)}" for tool in tools if tool not in _TOOLS and not tool.startswith(_OF_A_SERVER)]


def _meant(tool: str) -> str:
    close = get_close_matches(tool.lower(), [name.lower() for name in _TOOLS], 1)
    return "".join(f", did you mean {name}?" for name in _TOOLS if [name.lower()] == close)
