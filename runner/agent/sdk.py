"""The only file that imports claude_agent_sdk: its options, frames and errors, and ours for them.

Every run gets every option, so that nothing of the host's or the repository's settings,
hooks or MCP servers reaches it.

Knows the SDK and what its CLI does with an option. Does not decide when a run ends.
"""

import hashlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    ClaudeSDKError,
    CLIConnectionError,
    CLINotFoundError,
    HookContext,
    HookInput,
    HookJSONOutput,
    HookMatcher,
    ProcessError,
    RateLimitEvent,
    ResultError,
    ResultMessage,
    SdkMcpTool,
    StreamEvent,
    SystemMessage,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    create_sdk_mcp_server,
    query,
)
from claude_agent_sdk import Message as Frame

from runner.agent.words import (
    SERVER,
    ApiRetried,
    Call,
    Message,
    Options,
    RateLimited,
    Said,
    Started,
    Tool,
    ToolEnded,
    ToolStarted,
    Used,
)
from runner.outcome import Ending, Result, Trouble

for _name in ("claude_agent_sdk", "mcp"):  # they log parts of frames, and a frame holds what was said
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False

_FRAME_BYTES = 64 * 1024 * 1024  # a longer frame ends the run; the SDK's 1 MiB is less than one tool's output
_YEAR_9999_S = 253_370_764_800  # Claude Code passes on whatever number a header holds
_HOOK_S = 60.0  # the CLI's default, said aloud: a tool waits so long for `before_tool` and is then blocked
_OURS = f"mcp__{SERVER}__"
_EDITORS = frozenset({"Edit", "MultiEdit", "NotebookEdit", "Write"})
_TELLING = ("command", "file_path", "notebook_path", "path", "pattern", "url", "query", "subject", "description")
_LAUNCHER = {125: Trouble.SPAWN_FAILED, 126: Trouble.SPAWN_FAILED, 127: Trouble.CLI_MISSING}
_SANDBOX = {
    "enabled": True,
    "failIfUnavailable": True,
    "autoAllowBashIfSandboxed": True,
    "allowUnsandboxedCommands": False,
}


def frames(
    options: Options,
    prompt: str,
    *,
    environment: Mapping[str, str],
    before_tool: Callable[[ToolStarted], Awaitable[None]],
    after_tool: Callable[[ToolEnded], Awaitable[None]],
    on_stderr: Callable[[str], None],
) -> AsyncIterator[Frame]:
    """Start the CLI and yield what it says, to its end; raises whatever the SDK does.

    Args:
        options: The run's.
        prompt: Sent as written.
        environment: Of the SDK's child, on top of our own.
        before_tool: Awaited before each tool, whose summary is yet to be cut; when it raises, the tool is blocked.
        after_tool: Awaited after each tool that is not ours, before the model is asked again.
        on_stderr: Called with each line.
    """
    ending: set[str] = set()  # names of own tools whose answer ends the run
    after = HookMatcher(hooks=[_post_hook(ending, after_tool)])
    return query(
        prompt=prompt,
        options=ClaudeAgentOptions(
            cwd=options.cwd,
            cli_path=options.cli_path,
            env=dict(environment),
            resume=options.session_id if options.resume else None,
            session_id=None if options.resume else options.session_id,
            model=options.model,
            max_turns=options.max_turns,
            max_budget_usd=options.max_budget_microusd / 1e6,
            system_prompt={"type": "preset", "preset": "claude_code", "append": options.system_append},
            verbatim_prompts=True,
            setting_sources=[],
            settings=json.dumps({"sandbox": _SANDBOX}) if options.sandbox else None,
            strict_mcp_config=True,
            mcp_servers={SERVER: create_sdk_mcp_server(SERVER, tools=[_own(t, ending) for t in options.own_tools])},
            permission_mode="dontAsk",
            tools=list(options.tools),
            allowed_tools=_allowed(options),
            hooks={
                "PreToolUse": [HookMatcher(hooks=[_pre_hook(before_tool)], timeout=_HOOK_S, on_failure="block")],
                "PostToolUse": [after],
                "PostToolUseFailure": [after],
            },
            include_partial_messages=True,  # signs of life within a response that takes minutes
            forward_subagent_text=True,  # else only those of their responses are told that call tools
            max_buffer_size=_FRAME_BYTES,
            stderr=on_stderr,
        ),
    )


def _allowed(options: Options) -> list[str]:
    """Return the permission rules; `Edit(./**)` is about every tool that writes files, and confines it to `cwd`."""
    rules = ["Edit(./**)" if tool in _EDITORS else tool for tool in options.tools]
    return [*dict.fromkeys(rules), *(f"{_OURS}{tool.name}" for tool in options.own_tools)]


def _own(tool: Tool, ending: set[str]) -> SdkMcpTool[Any]:
    async def handle(arguments: dict[str, Any]) -> dict[str, Any]:
        answer = await tool.call(arguments)
        if answer.end_run:
            ending.add(f"{_OURS}{tool.name}")
        return {"content": [{"type": "text", "text": answer.text}], "is_error": answer.is_error}

    return SdkMcpTool(tool.name, tool.description, dict(tool.schema), handle)


def _pre_hook(
    before_tool: Callable[[ToolStarted], Awaitable[None]],
) -> Callable[[HookInput, str | None, HookContext], Awaitable[HookJSONOutput]]:
    async def before(call: HookInput, _id: str | None, _context: HookContext) -> HookJSONOutput:
        if call["hook_event_name"] == "PreToolUse":
            name, arguments = call["tool_name"], call["tool_input"]
            await before_tool(ToolStarted(call["tool_use_id"], name, _telling(arguments)))
        return {}

    return before


def _post_hook(
    ending: set[str], after_tool: Callable[[ToolEnded], Awaitable[None]]
) -> Callable[[HookInput, str | None, HookContext], Awaitable[HookJSONOutput]]:
    async def after(call: HookInput, _id: str | None, _context: HookContext) -> HookJSONOutput:
        match call:
            case {"tool_name": str(name)} if name.startswith(_OURS):  # whether it failed is in its answer only
                return {"continue_": False} if name in ending else {}
            case {"hook_event_name": "PostToolUse", "tool_use_id": str(call_id)}:
                await after_tool(ToolEnded(call_id, is_error=False))
            case {"hook_event_name": "PostToolUseFailure", "tool_use_id": str(call_id), "error": str(error)}:
                await after_tool(ToolEnded(call_id, is_error=True, error=error))
            case _:
                pass
        return {}

    return after


def _telling(arguments: Mapping[str, object]) -> str:
    return next((value for key in _TELLING if isinstance(value := arguments.get(key), str)), "")


def understand(frame: Frame, end: Ending, expected_session: str) -> tuple[Ending, list[Message]]:
    """Return the ending as `frame` changes it, and what `frame` says in our words; [] for a mere sign of life."""
    match frame:
        case SystemMessage(subtype="init", data=data):
            started = Started(str(data.get("session_id")), str(data.get("claude_code_version")), str(data.get("model")))
            return _same_session(end, started.session_id, expected_session), [started]
        case SystemMessage(subtype="api_retry", data=data):
            return end, [_retried(data)]
        case RateLimitEvent(rate_limit_info=info):
            at_s = info.resets_at if info.resets_at is not None and info.resets_at < _YEAR_9999_S else None
            at_us = None if at_s is None else round(at_s * 1e6)
            limited = RateLimited(info.status, info.rate_limit_type, at_us)
            return replace(end, reset_at_us=at_us if info.status == "rejected" else None), [limited]
        case AssistantMessage():
            return _spoken(frame, end)
        case UserMessage(content=list(blocks)):
            return end, [_ended(block) for block in blocks if isinstance(block, ToolResultBlock)]
        case StreamEvent(event={"type": "message_start", "message": {"model": str(model), "usage": usage}}):
            return end, [_put_in(model, usage)]
        case StreamEvent(event={"type": "message_delta", "delta": delta, "usage": usage}):
            output, calls_tools = int(usage.get("output_tokens") or 0), delta.get("stop_reason") == "tool_use"
            return end, [Used(output=output, ends=True, calls_tools=calls_tools)]
        case ResultMessage():
            return _same_session(replace(end, result=_result(vars(frame))), frame.session_id, expected_session), []
        case _:
            return end, []


def _spoken(frame: AssistantMessage, end: Ending) -> tuple[Ending, list[Message]]:
    is_aside = frame.parent_tool_use_id is not None
    if frame.model == "<synthetic>" or frame.error is not None:
        return end if is_aside else replace(end, api_error=frame.error or end.api_error), []
    text = "\n".join(block.text for block in frame.content if isinstance(block, TextBlock))
    calls = tuple(_call(block) for block in frame.content if isinstance(block, ToolUseBlock))
    end = replace(end, confirmed=True, reset_at_us=None)  # a limit that it met is no reason to wait any more
    said = Said(frame.message_id or "", text, frame.uuid or "", calls)
    if not is_aside:
        return end, [said]
    used = _put_in(frame.model, frame.usage or {})
    return end, [said, replace(used, ends=True, calls_tools=bool(calls), aside=said.message_id or said.uuid)]


def explain(error: Exception, end: Ending, expected_session: str, *, heard: bool) -> tuple[Ending, str]:
    """Return the ending as what the SDK raised makes it, and a line for a person.

    Args:
        error: As raised.
        end: What was known before.
        expected_session: Its id.
        heard: Whether there was a message before.
    """
    match error:
        case ResultError():
            result = end.result or _result(error.data)  # a failed resume has no message, only this
            end = _same_session(end, error.session_id or expected_session, expected_session)
            return replace(end, result=result, exit_code=error.exit_code), str(error).partition(" (exit code")[0]
        case ProcessError(exit_code=code):
            trouble = None if heard or code is None else _LAUNCHER.get(code)
            return replace(end, exit_code=code, trouble=end.trouble or trouble), f"the CLI ended with {code}"
        case CLINotFoundError():
            return replace(end, trouble=Trouble.CLI_MISSING), str(error)
        case CLIConnectionError() if not heard:
            return replace(end, trouble=Trouble.SPAWN_FAILED), str(error)
        case CLIConnectionError():
            return replace(end, trouble=end.trouble or Trouble.OTHER), str(error)
        case ClaudeSDKError():
            return replace(end, trouble=Trouble.PROTOCOL), type(error).__name__  # its text quotes the frame
        case _:
            return replace(end, trouble=end.trouble or Trouble.OTHER), f"{type(error).__name__}: {error}"


def _same_session(end: Ending, session: str, expected: str) -> Ending:
    return end if session == expected else replace(end, trouble=Trouble.WRONG_SESSION)


def _retried(data: Mapping[str, Any]) -> ApiRetried:
    status, delay_ms = data.get("error_status"), data.get("retry_delay_ms") or 0
    return ApiRetried(
        attempt=int(data.get("attempt") or 0),
        status=status if isinstance(status, int) else None,
        error=str(data.get("error")),
        delay_s=delay_ms / 1000,
    )


def _call(block: ToolUseBlock) -> Call:
    asked = json.dumps([block.name, block.input], sort_keys=True)
    return Call(block.id, block.name, hashlib.sha256(asked.encode()).hexdigest())


def _ended(block: ToolResultBlock) -> ToolEnded:
    if not block.is_error:
        return ToolEnded(block.tool_use_id, is_error=False)
    said = block.content if isinstance(block.content, str) else json.dumps(block.content)
    return ToolEnded(block.tool_use_id, is_error=True, error=said)


def _result(data: Mapping[str, Any]) -> Result:
    """Return a result, of its message's attributes or of its frame: they have the same names."""
    cost, usage = data.get("total_cost_usd"), data.get("usage") or {}
    text = data.get("result") or "; ".join(map(str, data.get("errors") or []))
    return Result(
        subtype=str(data.get("subtype")),
        is_error=bool(data.get("is_error")),
        terminal_reason=data.get("terminal_reason"),
        api_error_status=data.get("api_error_status"),
        turns=int(data.get("num_turns") or 0),
        total_cost_microusd=None if cost is None else round(cost * 1e6),
        text=text,
        input_tokens=sum(
            int(usage.get(key) or 0)
            for key in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        ),
        output_tokens=int(usage.get("output_tokens") or 0),
        stop_reason=data.get("stop_reason"),
    )


def _put_in(model: str, usage: Mapping[str, Any]) -> Used:
    hour = int((usage.get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0)
    return Used(
        model,
        input=int(usage.get("input_tokens") or 0),
        cache_read=int(usage.get("cache_read_input_tokens") or 0),
        cache_write_5m=int(usage.get("cache_creation_input_tokens") or 0) - hour,
        cache_write_1h=hour,
    )
