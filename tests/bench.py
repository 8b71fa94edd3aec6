"""A bench for conversations: the real SDK and CLI, the real launcher, a scripted model."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import anyio

from runner import processes, transcript
from runner.agent import (
    Clocks,
    Message,
    Options,
    Stop,
    ToolEnded,
    ToolStarted,
    cli_environment,
    converse,
)
from runner.children import base_environment, launch_variable, write_launcher
from runner.offline import (
    Failure,
    Reply,
    Scene,
    Script,
    ScriptedServer,
    Text,
    ToolUse,
)
from runner.outcome import Ending, StoppedBy
from runner.processes import Cookie

T = TypeVar("T")

CLOCKS = Clocks(start_s=30, silence_s=30, tool_silence_s=30, linger_s=20, run_s=None)
TOOLS = ("Bash", "Read", "Glob", "Grep", "Edit", "Write")
COST = 10_500  # of a reply as the script makes them
SPEAKER = f"""#!{sys.executable}
import json, sys
asked = json.loads(sys.stdin.readline())
able = {{"hook_on_failure_supported": True}}
answer = {{"subtype": "success", "request_id": asked["request_id"], "response": able}}
print(json.dumps({{"type": "control_response", "response": answer}}), flush=True)
sys.stdin.readline()
"""


def cli() -> Path:
    """Return the CLI that the SDK ships."""
    import claude_agent_sdk  # noqa: PLC0415  a second that collecting need not take

    return Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"


def say(text: str) -> Reply:
    """Return a reply of words."""
    return Reply((Text(text),))


def use(name: str, **arguments: str) -> Reply:
    """Return a reply that calls a tool."""
    return Reply((ToolUse(name, dict(arguments)),))


async def until(condition: Callable[[], bool]) -> None:
    """Look, every hundredth of a second for a minute, for what another process does and no event tells."""
    with anyio.fail_after(60):
        while not condition():
            with anyio.move_on_after(0.01):
                await anyio.Event().wait()


def existing(*paths: Path) -> list[Path]:
    """Return those of `paths` at which there is something."""
    return [path for path in paths if path.exists()]


@dataclass
class Bench:
    """A worktree, a configuration directory and a model that says what a test wants."""

    server: ScriptedServer
    root: Path
    messages: list[Message] = field(default_factory=list)
    tools: list[ToolStarted] = field(default_factory=list)
    ended: list[tuple[ToolEnded, int]] = field(default_factory=list)
    """Each with how often the model had been asked then."""
    before: Callable[[ToolStarted], Awaitable[None]] | None = None
    on: Callable[[Message], Awaitable[StoppedBy | None]] | None = None
    stop: Stop = field(default_factory=Stop)

    @property
    def cookie(self) -> Cookie:
        """What marks the processes of this test."""
        return Cookie(str(self.root), "t-1", 1)

    def plays(self, *turns: Reply | Failure) -> None:
        """Let the model say `turns` from now on."""
        self.server.script = Script((Scene("", turns),))

    def options(self, *, cli_path: Path | None = None, real_cli: Path | None = None, **more: str) -> Options:
        """Return options whose CLI talks to the scripted model, with `more` in its environment."""
        config_dir, cwd = self.root / "claude", self.root / "tree"
        cwd.mkdir(exist_ok=True)
        (self.root / "tmp").mkdir(exist_ok=True)
        environment = base_environment(
            cli_environment(config_dir)
            | {"CLAUDE_CODE_TMPDIR": str(self.root / "tmp")}
            | {"ANTHROPIC_BASE_URL": self.server.url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_MAX_RETRIES": "1"}
            | more,
            home_dir=self.root / "home",
            tmp_dir=self.root / "tmp",
        )
        return Options(
            cwd=cwd,
            session_id=str(uuid4()),
            resume=False,
            cli_path=cli_path or write_launcher(self.root),
            environment=launch_variable(real_cli or cli(), cookie=self.cookie, environment=environment),
            config_dir=config_dir,
            system_append="The rule of this house.",
            model="claude-sonnet-4-5",
            tools=TOOLS,
            max_budget_microusd=1_000_000,
        )

    def stub(self, name: str, text: str) -> Path:
        """Write a program that stands in for the CLI, `CLI` in it being the real one's path."""
        path = self.root / name
        path.write_text(text.replace("CLI", str(cli())))
        path.chmod(0o700)
        return path

    def speaker(self, *frames: object) -> Path:
        """Write a stand-in for the CLI that takes the prompt, says `frames` and ends well."""
        return self.stub("speaker", SPEAKER + f"for frame in {list(frames)!r}:\n    print(json.dumps(frame))\n")

    async def sleeping(self) -> None:
        """Wait until the agent's command sleeps."""
        await until(lambda: any(found.name == "sleep" for found in processes.find(str(self.root))))

    async def end_processes(self) -> None:
        """Reap, as the runner does."""
        await processes.reap(str(self.root), "t-1")

    async def before_tool(self, tool: ToolStarted) -> None:
        """Remember the call."""
        self.tools.append(tool)
        if self.before is not None:
            await self.before(tool)

    async def after_tool(self, tool: ToolEnded) -> None:
        """Remember the end of the call."""
        self.ended.append((tool, len(self.server.served)))

    async def on_message(self, message: Message) -> StoppedBy | None:
        """Remember the message."""
        self.messages.append(message)
        return None if self.on is None else await self.on(message)

    async def run(self, options: Options, prompt: str = "Do it.", *, clocks: Clocks = CLOCKS) -> Ending:
        """Converse, and prove that nothing is left of it."""
        try:
            return await converse(
                options,
                prompt,
                clocks=clocks,
                stop=self.stop,
                end_processes=self.end_processes,
                before_tool=self.before_tool,
                after_tool=self.after_tool,
                on_message=self.on_message,
            )
        finally:
            assert processes.find(str(self.root)) == []

    def heard(self, kind: type[T]) -> list[T]:
        """Return the messages of one kind."""
        return [message for message in self.messages if isinstance(message, kind)]

    def read(self, options: Options, since_bytes: int = 0) -> transcript.Reading:
        """Read the session's transcript."""
        path = transcript.path(options.config_dir, options.cwd, options.session_id)
        return transcript.read(path, since_bytes=since_bytes)
