"""The door to Claude's SDK: options in, our own messages out, one `Ending` back.

`converse` is all of it: it runs one CLI process to its end. `words` is what is given
to it and what it tells, `sdk` is the only file that imports the SDK.

Does not know tickets, transcripts, processes or the store: those are callables.
"""

from runner.agent.conversation import Interrupted, Stop, converse
from runner.agent.words import (
    Answer,
    ApiRetried,
    Call,
    Clocks,
    Heard,
    Message,
    Options,
    RateLimited,
    Said,
    Started,
    Tool,
    ToolEnded,
    ToolStarted,
    Used,
    cli_environment,
)

__all__ = [
    "Answer",
    "ApiRetried",
    "Call",
    "Clocks",
    "Heard",
    "Interrupted",
    "Message",
    "Options",
    "RateLimited",
    "Said",
    "Started",
    "Stop",
    "Tool",
    "ToolEnded",
    "ToolStarted",
    "Used",
    "cli_environment",
    "converse",
]
