"""The process table: found by cookie, ended by one path."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import pytest

from runner.children import launch_variable, write_launcher
from runner.processes import Cookie, ProcessesRemain, end_command, find, identity, is_alive, reap

pytestmark = pytest.mark.anyio

Start = Callable[..., "subprocess.Popen[str]"]
ROOT = Path(__file__).parent.parent

# A stand-in for the CLI: notes each TERM; leaves after the one that `last` says.
CLI = """
import signal, sys
note, last = sys.argv[1], int(sys.argv[2])
def term(number, frame):
    global last
    with open(note, "a") as file:
        file.write("TERM\\n")
    last -= 1
    if last == 0:
        sys.exit(0)
signal.signal(signal.SIGTERM, term)
print("ready", flush=True)
while True:
    signal.pause()
"""

# A stand-in for the daemon: starts the CLI through the launcher, says its pid, and waits to be killed.
DAEMON = """
import os, subprocess, sys
from pathlib import Path
from runner.children import launch_variable, write_launcher
from runner.processes import Cookie
home, *arguments = sys.argv[1:]
launch = launch_variable(Path(sys.executable), cookie=Cookie(home, "T-1", 1), environment={})
cli = subprocess.Popen([write_launcher(Path(home)), *arguments], env=launch, stdout=subprocess.PIPE, text=True)
cli.stdout.readline()
print(cli.pid, flush=True)
cli.wait()
"""

# Leaves behind an orphan in a session of its own, deaf to TERM, that says its pid.
DETACHED = """
import os, signal
middle = os.fork()
if middle:
    os.waitpid(middle, 0)
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[str]:
    """Return a home, and end whatever a failed test left there."""
    yield str(tmp_path)
    for process in find(str(tmp_path)):
        os.kill(process.pid, signal.SIGKILL)


@pytest.fixture
def start() -> Iterator[Start]:
    """Return what starts a program that lives until the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, env: dict[str, str]) -> "subprocess.Popen[str]":
        started.append(subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def note(home: str) -> Iterator[int]:
    """Return where the stand-in for the CLI notes each TERM."""
    path = Path(home) / "note"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # also a writer, so that it never ends
    yield descriptor
    os.close(descriptor)


def line_of(process: "subprocess.Popen[str]") -> str:
    """Return the next line of its output."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def detached(start: Start, home: str, ticket: str = "T-1") -> int:
    """Start a process that nothing but its cookie ties to us; return its pid."""
    parent = start(sys.executable, "-c", DETACHED, env=Cookie(home, ticket, 1).environment())
    pid = int(line_of(parent))
    assert parent.wait() == 0
    return pid


def launched(start: Start, home: str, *, last_term: int) -> "subprocess.Popen[str]":
    """Start the stand-in for the CLI by the launcher, as a child of ours."""
    launch = launch_variable(Path(sys.executable), cookie=Cookie(home, "T-1", 1), environment={})
    note = str(Path(home) / "note")
    cli = start(str(write_launcher(Path(home))), "-c", CLI, note, str(last_term), env={**os.environ, **launch})
    assert line_of(cli) == "ready"
    return cli


def left_by_dead_daemon(start: Start, home: str, note: int, *, last_term: int) -> int:
    """Start a daemon with a CLI, SIGKILL the daemon, and return the CLI's pid once it had the TERM of that death."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    daemon = start(sys.executable, "-c", DAEMON, home, "-c", CLI, str(Path(home) / "note"), str(last_term), env=env)
    pid = int(line_of(daemon))
    daemon.kill()
    daemon.wait()
    assert select.select([note], [], [], 10)[0], "no TERM came"
    assert os.read(note, 100) == b"TERM\n"
    return pid


async def end_of(pid: int) -> None:
    """Wait until a process, which may be gone already, has ended."""
    with suppress(ProcessLookupError), anyio.fail_after(60), ExitStack() as stack:
        pidfd = os.pidfd_open(pid)
        stack.callback(os.close, pidfd)
        await anyio.wait_readable(pidfd)


def test_find_by_home_ticket_and_kind(start: Start, home: str) -> None:
    """A process is found by its own home, ticket and kind, and by no other."""
    cookie = Cookie(home, "T-1", 7, "effect")
    process = start("sleep", "100", env=cookie.environment())
    (found,) = find(home)
    assert (found.pid, found.name, found.cookie) == (process.pid, "sleep", cookie)
    assert not found.is_cli
    assert not found.orphaned
    assert find(home, "T-1", "effect") == [found]
    assert find(home + "2") == find(home, "T-11") == find(home, "T-1", "agent") == []


def test_find_a_detached_process(start: Start, home: str) -> None:
    """A process that forked twice, left its session and lost its parent is found."""
    pid = detached(start, home)
    assert [process.pid for process in find(home)] == [pid]


def test_a_zombie_is_not_found(start: Start, home: str) -> None:
    """A process that ended and was not waited for counts as ended."""
    process = start("true", env=Cookie(home, "T-1", 1).environment())
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert find(home) == []
    assert identity(process.pid) is None


def test_identity_tells_processes_apart(start: Start) -> None:
    """A pid with another start time is another process, which is not alive."""
    process = start("sleep", "100", env={})
    begun = identity(process.pid)
    assert begun is not None
    assert is_alive(process.pid, begun)
    assert not is_alive(process.pid, begun + 1)


def test_a_cookie_is_read_back_only_whole() -> None:
    """A cookie survives its environment variable; other text is no cookie, and a bad one is refused."""
    cookie = Cookie("/var/lib/a home\n", "T-1", 3)
    (text,) = cookie.environment().values()
    assert Cookie.parse(text) == cookie
    assert Cookie.parse("agent 3 T/1 /var") is None
    for home, ticket, token in (("var", "T-1", 1), ("/var", "T 1", 1), ("/var", "", 1), ("/var", "T-1", -1)):
        with pytest.raises(ValueError, match="no cookie"):
            Cookie(home, ticket, token)


async def test_reap_ends_what_is_marked_and_nothing_else(start: Start, home: str) -> None:
    """A detached process, deaf to TERM, is ended; another ticket's and one without a cookie live on."""
    pid, other = detached(start, home), detached(start, home, "T-2")
    unmarked = start("sleep", "100", env={})
    reaped = await reap(home, "T-1")
    assert [process.pid for process in reaped.processes] == [pid]
    assert not reaped.cli_alive
    assert [process.pid for process in find(home)] == [other]
    assert unmarked.poll() is None


async def test_reap_leaves_effects_alone(start: Start, home: str) -> None:
    """Ending a ticket's agent ends no command that performs an effect."""
    effect = start("sleep", "100", env=Cookie(home, "T-1", 1, "effect").environment())
    assert (await reap(home, "T-1")).processes == ()
    assert effect.poll() is None
    assert [process.pid for process in (await reap(home, "T-1", kind="effect")).processes] == [effect.pid]


async def test_reap_ends_a_living_descendant_that_dropped_the_cookie(start: Start, home: str) -> None:
    """A process without environment is ended, since its parent has the cookie."""
    line = "env -i sh -c 'echo $$; exec sleep 100' & wait"
    parent = start("sh", "-c", line, env={**Cookie(home, "T-1", 1).environment(), "PATH": os.environ["PATH"]})
    pid = int(line_of(parent))
    begun = identity(pid)
    assert begun is not None
    reaped = await reap(home, "T-1")
    assert {process.pid for process in reaped.processes} == {parent.pid, pid}
    assert not is_alive(pid, begun)


async def test_reap_lets_the_cli_end_by_itself(start: Start, home: str, note: int) -> None:
    """A CLI that obeys TERM gets one, and no KILL, while what it started is killed."""
    cli = launched(start, home, last_term=1)
    pid = detached(start, home)
    reaped = await reap(home, "T-1")
    assert (reaped.cli_alive, reaped.cli_killed) == (True, False)
    assert {process.pid for process in reaped.processes} == {cli.pid, pid}
    assert cli.wait() == 0
    assert os.read(note, 100) == b"TERM\n"


@pytest.mark.usefixtures("note")
async def test_reap_kills_a_deaf_cli(start: Start, home: str) -> None:
    """A CLI that goes on after TERM is killed when its time is over."""
    cli = launched(start, home, last_term=1000)
    reaped = await reap(home, "T-1", cli_grace_s=0.2)
    assert (reaped.cli_alive, reaped.cli_killed) == (True, True)
    assert cli.wait() == -signal.SIGKILL


async def test_the_death_of_the_daemon_ends_the_cli(start: Start, home: str, note: int) -> None:
    """A CLI whose daemon is killed by SIGKILL gets TERM and ends, with nobody there to send it."""
    await end_of(left_by_dead_daemon(start, home, note, last_term=1))
    assert find(home) == []


async def test_an_orphaned_cli_is_left_to_end(start: Start, home: str, note: int) -> None:
    """A CLI that is ending because its daemon died gets a second TERM only after a while."""
    pid = left_by_dead_daemon(start, home, note, last_term=2)
    (cli,) = find(home)
    assert (cli.pid, cli.is_cli, cli.orphaned) == (pid, True, True)
    with anyio.move_on_after(0.3):
        await reap(home, "T-1", orphan_wait_s=1000)
    with pytest.raises(BlockingIOError):
        os.read(note, 100)
    assert find(home) == [cli]
    reaped = await reap(home, "T-1", orphan_wait_s=0.1)
    assert os.read(note, 100) == b"TERM\n"
    assert (reaped.cli_alive, reaped.cli_killed) == (True, False)


REAPER = """
import os, sys, anyio, anyio._backends._asyncio, asyncio.events, concurrent.futures.thread
from runner.processes import ProcessesRemain, reap
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    anyio.run(lambda: reap(sys.argv[1], "T-1", kill_wait_s=0.3))
except ProcessesRemain as error:
    print(*error.pids)
"""

# Leaves a child of root behind, and goes on as another user, in the same process.
MIXED = """
import os, signal
pid = os.fork()
if pid == 0:
    signal.pause()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
os.execve("/bin/sh", ["sh", "-c", f"echo {pid}; sleep 100; true"], os.environ)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs two users")
def test_processes_that_remain_are_named(start: Start, home: str) -> None:
    """What can not be killed is an error with its pid, and what can be killed is."""
    mixed = start(sys.executable, "-c", MIXED, env=Cookie(home, "T-1", 1).environment())
    pid = line_of(mixed)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", REAPER, home], env=env, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [pid]
    assert mixed.wait() == -signal.SIGKILL
    assert pid in str(ProcessesRemain("T-1", (int(pid),)))


async def test_the_end_of_a_command_ends_its_group_only(start: Start, home: str) -> None:
    """A process with the same cookie that belongs to no command outlives the end of one."""
    other = detached(start, home)
    shell = start("setsid", "sh", "-c", "echo $$; sleep 100; true", env=Cookie(home, "T-1", 1).environment())
    assert line_of(shell) == str(shell.pid)
    await end_command(shell.pid, identity(shell.pid), Cookie(home, "T-1", 1))
    assert shell.wait() == -signal.SIGKILL
    assert [process.pid for process in find(home)] == [other]


async def test_a_reused_pid_is_not_signalled(start: Start, home: str) -> None:
    """A process that has the pid of one that ended, but another start time, is left alone."""
    process = start("sleep", "100", env={})
    begun = identity(process.pid)
    assert begun is not None
    await end_command(process.pid, begun - 1, Cookie(home, "T-1", 1))
    assert process.poll() is None
