"""A real daemon over a small repository and a scripted model: started, killed, steered and looked at by a test.

A daemon is a process of its own: `ticket-runner start`, or, for a test that wants it to
die or to look around at an event, observed.py, which is the same but for what it does
when it is told of an event. All that is asked of it is asked as an operator
does, through the command line, but for the log, which is read from the store.

Knows how a test waits; does not know what is proved.
"""

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event as Waiting
from time import monotonic
from typing import ClassVar, TypeVar

import anyio

from runner import processes
from runner.config import Config
from runner.errors import ConfigError
from runner.events import Event, Name
from runner.home import Home
from runner.offline import Failure, Reply, Scene, Script, ScriptedServer, Served, Text, ToolUse
from runner.processes import Found
from runner.store import Store, StoreUnavailable
from runner.store.log import events
from tests.observed import Look
from tests.shown import Overview, Shown
from tickets import folder

T = TypeVar("T")
Settings = dict[str, object]

COST = 10_500
"""Micro-dollars of a reply as the script makes them."""
LONG_S = 60.0
"""For what takes seconds: two of a run's starts share a core with other tests."""
_PROJECT = Path(__file__).parent.parent
_PROGRAM = Path(sys.executable).with_name("ticket-runner")


def say(text: str) -> Reply:
    """Return a reply of words."""
    return Reply((Text(text),))


def bash(command: str, *, input_tokens: int = 1000, output_tokens: int = 500) -> Reply:
    """Return a reply that calls a shell."""
    call = ToolUse("Bash", {"command": command})
    return Reply((call,), input_tokens=input_tokens, output_tokens=output_tokens)


def until(condition: Callable[[], T], what: str, *, within_s: float = LONG_S) -> T:
    """Return what `condition` returns as soon as that is true.

    Raises:
        TimeoutError: It did not become so in time.
    """
    deadline = monotonic() + within_s
    while not (value := condition()):
        if monotonic() > deadline:
            raise TimeoutError(f"not within {within_s} s: {what}")
        Waiting().wait(0.02)
    return value


def living(found: Sequence[Found]) -> list[Found]:
    """Return those of the processes that live."""
    return [each for each in found if processes.is_alive(each.pid, each.start)]


def command_line(process: Found) -> list[str]:
    """Return a process's arguments; none when it is gone."""
    try:
        return (Path("/proc") / str(process.pid) / "cmdline").read_text().split("\0")
    except OSError:
        return []


class Daemon:
    """A daemon's process."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: Path) -> None:
        self._process, self._stderr = process, stderr
        self.pid = process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it alone."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a machine does that loses its power."""
        self._process.kill()
        self._process.wait(LONG_S)

    def ends(self, within_s: float = LONG_S) -> int:
        """Wait for its end and return its exit code, negative for a signal."""
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the daemon goes on:\n{self.said()}") from None

    def is_running(self) -> bool:
        """Say whether it lives."""
        return self._process.poll() is None

    def said(self) -> str:
        """Return what it wrote to its log so far."""
        return self._stderr.read_text()

    def stops(self, times: int) -> bool:
        """Say whether it has heeded so many signals."""
        return self.said().count("daemon.stopping") >= times


class Site:
    """A repository, a queue and a state directory, and the daemons that come and go over them."""

    credential: ClassVar[dict[str, str]] = {"ANTHROPIC_API_KEY": "offline"}
    """What the daemon finds in its environment."""

    def __init__(self, root: Path, server: ScriptedServer, settings: Settings) -> None:
        self.root, self.server = root, server
        self.repository, self.file = root / "repo", root / "ticket-runner.toml"
        self._daemons: list[Daemon] = []
        _make_repository(self.repository)
        self.configure(**settings)
        self.home = Home.of(self.config)
        self.home.prepare()

    @classmethod
    @contextmanager
    def at(cls, root: Path, **settings: object) -> Iterator["Site"]:
        """Build a site in `root`; at the end nothing of it runs."""
        with ExitStack() as stack:
            site = cls(root, stack.enter_context(ScriptedServer(Script(()))), settings)
            stack.callback(site.end)
            yield site

    def configure(self, **settings: object) -> None:
        """Write the configuration, `settings` over what is usual here; a table is given as a dict."""
        agent = {"base_url": self.server.url, "model": "claude-sonnet-4-5", "max_retries": 0}
        usual: Settings = {"repository": "repo", "state_directory": "state", "poll_s": 0.2, "agent": agent}
        usual["machine"] = {"min_free_disk": 0, "min_free_files": 0, "min_free_memory": 0}  # of the machine that tests
        values = usual | settings
        plain = [f"{key} = {json.dumps(value)}\n" for key, value in values.items() if not isinstance(value, dict)]
        for key, table in values.items():
            if isinstance(table, dict):
                plain += [f"[{key}]\n", *(f"{name} = {json.dumps(value)}\n" for name, value in table.items())]
        self.file.write_text("".join(plain))
        self.config = Config.load(self.file)

    def plays(self, *turns: Reply | Failure, later: Sequence[Reply | Failure] = ()) -> None:
        """Let the model say `turns` from now on, and `later` in sessions that follow another one."""
        self.server.script = Script((Scene("an earlier session worked on the ticket", tuple(later)), Scene("", turns)))

    def plays_for(self, **turns: Sequence[Reply | Failure]) -> None:
        """Let the model say what belongs to each ticket: its text holds the word `for-<key>`."""
        self.server.script = Script(tuple(Scene(f"for-{key}", tuple(said)) for key, said in turns.items()))

    def add(self, ticket: str, text: str = "Do it.", **front: object) -> None:
        """Put a ticket into the queue."""
        head = "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items())
        folder.add(self.config.queue_directory, f"---\n{head}---\n{text}".encode(), ticket)

    def start(self, *, once: bool = False, die_at: Name | None = None, look_at: Sequence[Name] = ()) -> Daemon:
        """Start a daemon.

        Args:
            once: As `--once`.
            die_at: The event at whose commit it kills itself.
            look_at: The events at whose commit it notes which processes of the ticket there are; see `looks`.
        """
        if die_at is None and not look_at:
            command = [str(_PROGRAM), "start", "--config", str(self.file)]
        else:
            command = [sys.executable, "-m", "tests.observed", str(self.file), "--looks", str(self._looks)]
            command += [f"--die-at={die_at}"] if die_at is not None else []
            command += [f"--look-at={name}" for name in look_at]
        command += ["--once"] if once else []
        stderr = self.root / f"daemon-{len(self._daemons) + 1}.log"
        with stderr.open("wb") as file:
            process = subprocess.Popen(command, cwd=_PROJECT, env=self._environment(), stdout=file, stderr=file)
        daemon = Daemon(process, stderr)
        self._daemons.append(daemon)
        return daemon

    def works_once(self, *, die_at: Name | None = None, look_at: Sequence[Name] = ()) -> int:
        """Let a daemon work until nothing is ready, and return its exit code."""
        return self.start(once=True, die_at=die_at, look_at=look_at).ends()

    def dies_at(self, name: Name) -> None:
        """Let a daemon work until it kills itself at an event."""
        daemon = self.start(once=True, die_at=name)
        assert daemon.ends() == -signal.SIGKILL, daemon.said()

    def tell(self, *arguments: str, code: int = 0) -> str:
        """Run a command as an operator does and return what it says, on either stream."""
        done = subprocess.run(
            [str(_PROGRAM), *arguments, "--config", str(self.file)],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=LONG_S,
        )
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def show(self, ticket: str) -> Shown:
        """Return what `show` shows."""
        return Shown.model_validate_json(self.tell("show", ticket, "--json"))

    def status(self) -> Overview:
        """Return what `status` shows of all tickets."""
        return Overview.model_validate_json(self.tell("status", "--done", "--json"))

    def log(self, ticket: str | None) -> list[Event]:
        """Return a ticket's log so far; "" for the queue's, None for all."""
        try:
            store = Store.open(self.config.database_url, read_only=True)
        except (ConfigError, StoreUnavailable):  # there are no tables yet
            return []
        try:
            return [entry.event for entry in store.read(events, ticket=ticket)]
        finally:
            store.close()

    def names(self, ticket: str) -> list[Name]:
        """Return what happened to a ticket so far."""
        return [event.name for event in self.log(ticket)]

    def wait(self, condition: Callable[[], T], what: str) -> T:
        """Return what `condition` returns as soon as that is true.

        Raises:
            TimeoutError: It did not become so in time, or the daemon ended before.
        """

        def met() -> T:
            daemon = self._daemons[-1]
            running = daemon.is_running()
            value = condition()
            if not value and not running:
                raise TimeoutError(f"the daemon ended ({daemon.ends()}) before {what}:\n{daemon.said()}")
            return value

        return until(met, what)

    def wait_for(self, name: Name, ticket: str, *, times: int = 1) -> None:
        """Wait until an event is in a ticket's log so many times.

        Raises:
            TimeoutError: It did not become so in time, or the daemon ended before; with what is in the log.
        """
        try:
            self.wait(lambda: self.names(ticket).count(name) >= times, f"{name} of {ticket}, {times} times")
        except TimeoutError as error:
            for event in self.log(ticket):
                error.add_note(f"{event.at_us} {event.name} {event.payload}")
            raise

    def waits_in_tool(self, ticket: str, mark: str) -> None:
        """Wait until the agent's shell has made the file `mark` in its worktree."""
        self.wait((self.worktree(ticket) / mark).exists, f"{mark} of {ticket}")

    def worktree(self, ticket: str) -> Path:
        """Return where a ticket's worktree is."""
        return self.home.worktrees / ticket

    def processes(self, ticket: str | None = None) -> list[Found]:
        """Return what lives of a ticket, or of all."""
        return processes.find(str(self.home.path), ticket)

    def cli(self, ticket: str) -> Found:
        """Return the CLI of a ticket, waiting for it."""
        return self.wait(lambda: [each for each in self.processes(ticket) if each.is_cli], f"a CLI of {ticket}")[0]

    def _environment(self) -> dict[str, str]:
        return os.environ | self.credential | {"PYTHONPATH": str(_PROJECT)}

    @property
    def _looks(self) -> Path:
        return self.root / "looks"

    def looks(self, name: Name) -> list[Look]:
        """Return what daemons saw at an event."""
        lines = self._looks.read_text().splitlines() if self._looks.exists() else []
        return [look for look in map(Look.model_validate_json, lines) if look.name == name]

    @property
    def calls(self) -> list[Served]:
        """What the model was asked."""
        return self.server.served

    @staticmethod
    def run_git(directory: Path, *arguments: str) -> str:
        """Return what git says in a directory."""
        return _git(directory, *arguments)

    def git(self, *arguments: str) -> str:
        """Return what git says in the repository."""
        return _git(self.repository, *arguments)

    def delivered(self, ticket: str) -> list[str]:
        """Return the subjects of a ticket's commits in the repository, the newest first; [] without its branch."""
        branch = f"refs/heads/ticket/{ticket}"
        if not self.git("for-each-ref", branch):
            return []
        return self.git("log", "--format=%s", f"main..{branch}").splitlines()

    def let_the_wait_pass(self, ticket: str) -> None:
        """Make a ticket that waits, or a queue that does, due, as time would; no daemon may run."""
        with sqlite3.connect(self.home.database) as database:
            database.execute("UPDATE ticket SET not_before_us = 0 WHERE id = ?", (ticket,))
            database.execute("UPDATE queue SET until_us = 0 WHERE until_us IS NOT NULL")
        database.close()

    def end(self) -> None:
        """End whatever runs."""
        for daemon in self._daemons:
            if daemon.is_running():
                daemon.kill()
        for ticket in {each.cookie.ticket for each in self.processes()}:
            anyio.run(
                partial(processes.reap, str(self.home.path), ticket, cli_grace_s=0.1, orphan_wait_s=0.1),
            )


def wait_until_gone(found: Sequence[Found], *, within_s: float = LONG_S) -> None:
    """Wait for the end of processes that are not our children.

    Raises:
        TimeoutError: Some live.
    """
    deadline = monotonic() + within_s
    for each in found:
        try:
            pidfd = os.pidfd_open(each.pid)
        except ProcessLookupError:
            continue
        try:
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            if processes.is_alive(each.pid, each.start) and not ended.poll(max(deadline - monotonic(), 0) * 1000):
                raise TimeoutError(f"still alive after {within_s} s: {living(found)}")
        finally:
            os.close(pidfd)


def _git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Somebody", "-c", "user.email=somebody@localhost")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


def _make_repository(path: Path) -> None:
    path.mkdir()
    (path / "README.md").write_text("A small repository.\n")
    for arguments in (("init", "--quiet", "-b", "main"), ("add", "."), ("commit", "--quiet", "-m", "Begin")):
        _git(path, *arguments)
