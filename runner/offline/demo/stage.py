"""A directory with a repository, a queue and a home, in which the installed `ticket-runner` works.

Every process that comes of it has the directory's path in its environment, and so is found, waited for and
ended by that alone, whatever the runner itself knows of it. Nothing outside of the directory is read or
written: HOME is in it, git's own configuration is not used, and the key is not one.

Knows /proc, the command line and its JSON. Does not know the sample or what is to be shown.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Self

from pydantic import BaseModel, ValidationError

DEADLINE_S = 60.0
"""For one start of the daemon; it takes about 10."""
_LOOK_S = 0.05
_ENDING_S = 10.0


class NotHeld(Exception):
    """Something that the demo shows was not so."""


class Told(BaseModel):
    """An event as the daemon logs it, of which only what is shown is kept."""

    event: str
    ticket: str = ""
    kind: str = ""
    tool: str = ""
    summary: str = ""
    command: str = ""
    note: str | None = None


class Ticket(BaseModel):
    """A ticket in `status --json`."""

    id: str
    state: str


class Sums(BaseModel):
    """What its runs add up to there."""

    runs: int
    resumed: int
    cost_microusd: int
    cut: bool


class Line(BaseModel):
    """A row of it."""

    ticket: Ticket
    generation: int | None
    branch: str | None
    sums: Sums


class Overview(BaseModel):
    """All of it."""

    lines: list[Line]


@dataclass(frozen=True, slots=True)
class Stage:
    """The directory `root`; `path` is searched for programs."""

    root: Path
    path: str

    @property
    def repository(self) -> Path:
        """The sample repository."""
        return self.root / "sample"

    def worktree(self, ticket: str) -> Path:
        """Where the agent of a ticket works."""
        return self.root / "state" / "worktrees" / ticket

    @property
    def environment(self) -> dict[str, str]:
        """All that a process gets."""
        shown = {name: os.environ[name] for name in ("TERM", "COLUMNS", "NO_COLOR") if name in os.environ}
        return shown | {
            "ANTHROPIC_API_KEY": "offline",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "HOME": str(self.root / "home"),
            "LANG": "C.UTF-8",
            "PATH": self.path,
        }

    def build(self, files: Mapping[str, str], *, base_url: str, model: str) -> None:
        """Make the repository of `files`, with one commit, and the configuration beside it."""
        (self.root / "home").mkdir(parents=True)
        self.repository.mkdir()
        for name, content in files.items():
            (self.repository / name).write_text(content)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.git("add", "--all")
        self.git("-c", "user.name=Sample", "-c", "user.email=sample@localhost", "commit", "--quiet", "-m", "Begin")
        (self.root / "ticket-runner.toml").write_text(
            'repository = "sample"\nstate_directory = "state"\nconcurrency = 1\n'
            f'[agent]\nmodel = "{model}"\nbase_url = "{base_url}"\n'
        )

    def git(self, *words: str) -> str:
        """Run git in the repository and return what it said."""
        return self._output("git", "-C", str(self.repository), *words)

    def runner(self, *words: str) -> str:
        """Run `ticket-runner` and return what it said."""
        return self._output("ticket-runner", *words)

    def show(self, *words: str) -> None:
        """Run `ticket-runner` and let it write where we do."""
        sys.stdout.flush()
        self._run(("ticket-runner", *words), stdout=None)

    def overview(self) -> Overview:
        """Return what `status` knows of all tickets."""
        return Overview.model_validate_json(self.runner("status", "--done", "--json"))

    def wait_for(self, command: str) -> None:
        """Return as soon as a process runs whose command line has `command` in it."""
        self._wait_until(lambda: any(command in each for each in self.processes().values()), f"`{command}` never ran")

    def wait_for_the_end(self) -> None:
        """Return when no process is left by itself; git may finish something in the background."""
        self._wait_until(lambda: not self.processes(), "processes outlive the daemon")

    def processes(self) -> dict[int, str]:
        """Return pid and command line of every process that came of this directory."""
        mark, found = os.fsencode(self.root) + b"/", {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environ = (process / "environ").read_bytes()
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:  # gone, or another user's
                continue
            if mark in environ and int(process.name) != os.getpid():
                found[int(process.name)] = command
        return found

    def end(self) -> None:
        """Kill whatever is left, until nothing is."""

        def none_left() -> bool:
            left = self.processes()
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            return not left

        self._wait_until(none_left, "processes do not end")

    def _wait_until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = monotonic() + _ENDING_S
        while not condition():
            if monotonic() > deadline:
                raise NotHeld(f"{otherwise}; there are: {list(self.processes().values())}")
            threading.Event().wait(_LOOK_S)

    def _output(self, *words: str) -> str:
        return self._run(words, stdout=subprocess.PIPE).stdout

    def _run(self, words: tuple[str, ...], *, stdout: int | None) -> subprocess.CompletedProcess[str]:
        """Run a program of ours or git."""
        done = subprocess.run(  # noqa: S603
            words,
            cwd=self.root,
            env=self.environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        if done.returncode != 0:
            raise NotHeld(f"`{' '.join(words)}` returned {done.returncode}: {done.stderr.strip()}")
        return done


class Daemon:
    """`ticket-runner start --once` in a stage; a context manager that leaves none running.

    It is killed when it takes longer than `DEADLINE_S`.
    """

    def __init__(self, stage: Stage) -> None:
        self._process = subprocess.Popen(
            ("ticket-runner", "start", "--once"),  # noqa: S607  the one on the stage's PATH
            cwd=stage.root,
            env=stage.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._overdue = threading.Timer(DEADLINE_S, self._process.kill)
        self._unread: list[str] = []

    def __enter__(self) -> Self:
        self._overdue.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._overdue.cancel()
        self.kill()

    def events(self) -> Iterator[Told]:
        """Yield what it logs, as it does, to its end."""
        for line in self._process.stderr or ():
            try:
                yield Told.model_validate_json(line)
            except ValidationError:
                self._unread.append(line)

    def kill(self) -> None:
        """Kill it, and nothing that it started."""
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def wait(self) -> None:
        """Return when it has ended well."""
        code = self._process.wait()
        if code != 0:
            raise NotHeld(f"`ticket-runner start --once` returned {code}\n{''.join(self._unread[-20:])}".strip())
