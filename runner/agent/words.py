"""What a run is started with, and what is heard of it.

Frozen values in our units. Knows the CLI's own environment variables, and neither its
SDK nor anything of ours.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

SERVER = "runner"
"""Of our own tools: the model knows them as `mcp__runner__<name>`."""
APPEND_BYTES = 120_000
"""Of `Options.system_append`, which is one argument of the CLI: Linux allows 131,072 (MAX_ARG_STRLEN)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool of ours says to the model.

    With `end_run` the run ends after the call (`terminal_reason` "hook_stopped") and the
    model has its answer when the session is resumed; an error does not end it.
    """

    text: str
    is_error: bool = False
    end_run: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that runs in our process; the calls of a run come one after another."""

    name: str
    description: str
    schema: Mapping[str, object]
    """JSON schema of the arguments; `call` gets none that break it."""
    call: Callable[[Mapping[str, object]], Awaitable[Answer]]
    """Cancelled when the CLI goes away; what it raises is told to the model as an error."""


@dataclass(frozen=True, slots=True)
class Options:
    """All that a run is started with, each time anew: a resumed session remembers no option.

    Raises:
        ValueError: `system_append` can be no argument of a process.
    """

    cwd: Path
    """The only directory in which tools may edit files; Read and Bash are not confined by it."""
    session_id: str
    resume: bool
    cli_path: Path
    environment: Mapping[str, str]
    """What the SDK's child gets on top of our own environment and of `cli_environment`."""
    config_dir: Path
    system_append: str
    model: str | None
    tools: tuple[str, ...]
    max_budget_microusd: int
    """Of this process, at least 1: the CLI takes 0 for a mistake and does not start."""
    max_turns: int | None = None
    own_tools: tuple[Tool, ...] = ()
    redact: Callable[[str], str] = str
    """Takes the secrets out of a text. Applied to each text that is cut, before the cut, since part of a secret is not
    recognised; as it is, it takes out none."""
    sandbox: bool = False
    """Bash sees all but `cwd` read-only and has no network; needs bubblewrap and socat."""

    def __post_init__(self) -> None:
        if len(self.system_append.encode()) > APPEND_BYTES or "\0" in self.system_append:
            raise ValueError(f"system_append must be at most {APPEND_BYTES} bytes, without NUL: shorten the rules")


@dataclass(frozen=True, slots=True)
class Started:
    """The CLI is up and has the prompt."""

    session_id: str
    cli_version: str
    model: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that the model wants: `digest` is the same for the same tool and input."""

    tool_use_id: str
    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class Said:
    """A block of a real answer of the model; `text` is "" when it calls a tool or thinks."""

    message_id: str
    text: str
    uuid: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool is about to run, or to be refused; `summary` is a line of its input."""

    tool_use_id: str
    name: str
    summary: str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """The model was given a tool's result, or its refusal."""

    tool_use_id: str
    is_error: bool
    error: str = ""
    """What it said, if that is an error; bounded."""


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens, as the API counts them: of a request as its response begins, of the response as it ends."""

    model: str = ""
    input: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    ends: bool = False
    """The response is whole."""
    calls_tools: bool = False
    """The run goes on with what its tools say."""
    aside: str = ""
    """Which response of a subagent it is: told with each of its blocks, and never with what it puts out."""


@dataclass(frozen=True, slots=True)
class ApiRetried:
    """The API failed and the CLI tries again by itself, after `delay_s`."""

    attempt: int
    status: int | None
    error: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class RateLimited:
    """What the API says of our limits: `status` is "allowed", "allowed_warning" or "rejected"."""

    status: str
    kind: str | None
    reset_at_us: int | None


@dataclass(frozen=True, slots=True)
class Heard:
    """Any other sign of life, at most one a second."""


Message = Started | Said | Used | ToolStarted | ToolEnded | ApiRetried | RateLimited | Heard


@dataclass(frozen=True, slots=True)
class Clocks:
    """How long what may last, in seconds, before the run is stopped."""

    start_s: float
    """Until the first message."""
    silence_s: float
    """Without a message, outside a tool; while a response is made there are many, and a wait for a retry is none."""
    tool_silence_s: float
    """Without a message, in a tool of Claude Code's; it starts with the tool."""
    linger_s: float
    """From the result until the process is gone."""
    run_s: float | None
    """From the start to the result; None for no limit."""
    active_s: float | None = None
    """The same, by what a cap leaves."""


def cli_environment(config_dir: Path) -> dict[str, str]:
    """Return the variables that every CLI of ours needs; a launcher that makes its environment must pass them on."""
    return {
        "CLAUDE_CONFIG_DIR": str(config_dir),
        "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",  # what one ticket's agent noted is not told to another's
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",  # Bash has no `run_in_background`: nobody would wait for it
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "4",  # some 10 s; longer weather is waited out without a process
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_TELEMETRY": "1",
    }
