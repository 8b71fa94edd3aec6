"""A scripted Messages API on loopback, for Claude Code without a model, a key or the network.

`script` is what will be said, `conversation` reads what a request already holds, `wire` is how an
answer looks in bytes, `prices` what it costs, `server` serves and `served` is what it remembers. Nothing here knows the
runner: it is an outside system that happens to live in this repository.
"""

from runner.offline.conversation import conversation_text, final_text_of
from runner.offline.script import Failure, Reply, Scene, Script, Text, ToolUse
from runner.offline.served import Served
from runner.offline.server import ScriptedServer

__all__ = [
    "Failure",
    "Reply",
    "Scene",
    "Script",
    "ScriptedServer",
    "Served",
    "Text",
    "ToolUse",
    "conversation_text",
    "final_text_of",
]
