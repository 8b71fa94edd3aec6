"""Steering: over a real socket while a daemon listens, here while none holds the home, and never in between."""

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from anyio.to_thread import run_sync

from runner import control, log
from runner.commands import Command, NotPossible, Verb
from runner.control import NoAnswer, NobodyListens, Refused
from runner.errors import Exit
from runner.home import Home, Locked
from runner.redact import Redactor
from runner.steering import steer
from runner.store import tickets
from tests.shell import Shell, read_back, text_stream
from tickets.ticket import State

CANCEL = Command(Verb.CANCEL, "fix")
PATIENT_S = 20.0
DIES = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
client, _ = listener.accept()
client.recv(65536)
client.sendall(sys.argv[2].encode())
"""
"""A daemon that dies when it was told what to do, after the beginning of an answer."""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home that is there."""
    home = Home(tmp_path / "state", tmp_path / "state" / "queue")
    home.prepare()
    return home


async def obey(command: Command) -> str:
    """Say what was heard."""
    return f"{command.verb} {command.ticket} {command.fresh} {command.by}"


@asynccontextmanager
async def listening(home: Home, perform: Callable[[Command], Awaitable[str]] = obey) -> AsyncIterator[None]:
    """Serve commands as a daemon does."""
    async with anyio.create_task_group() as group:
        await group.start(control.listen, home, perform)
        with anyio.fail_after(PATIENT_S):
            yield
            await say(home, b"", end=True)  # anyio trips over a client's end in the same turn as a cancellation
        group.cancel_scope.cancel()


@asynccontextmanager
async def client(home: Home) -> AsyncIterator[SocketStream]:
    """Connect as any program of the owner can."""
    with home.socket_address() as address:
        stream = await anyio.connect_unix(address)
    async with stream:
        yield stream


async def say(home: Home, data: bytes, *, end: bool = False) -> dict[str, object]:
    """Send bytes and return what is answered."""
    async with client(home) as stream:
        await stream.send(data)
        if end:
            await stream.send_eof()
        return await answer(stream)


async def answer(stream: SocketStream) -> dict[str, object]:
    """Return the answer that comes."""
    data = b"".join([part async for part in stream])
    assert data.endswith(b"\n")
    told: dict[str, object] = json.loads(data)
    return told


async def still_works(home: Home) -> bool:
    """Return whether a proper command is obeyed."""
    return await run_sync(control.send, home, CANCEL) == "cancel fix False operator"


@pytest.mark.anyio
async def test_a_command_goes_there_and_its_answer_back(home: Home) -> None:
    """A command arrives with all that it says, and what was done comes back."""
    async with listening(home):
        said = await run_sync(control.send, home, Command(Verb.RETRY, "fix", fresh=True, by="me"))
        assert said == "retry fix True me"


@pytest.mark.anyio
async def test_a_refusal_comes_back_with_its_exit_code(home: Home) -> None:
    """What a command is refused with is said by the sender in the same words, with the same exit code."""

    async def refuse(command: Command) -> str:
        raise Locked(home.path, 7) if command.ticket == "locked" else NotPossible(command.verb, "fix", "it is done")

    async with listening(home, refuse):
        with pytest.raises(Refused, match=r"^cannot cancel ticket fix: it is done$") as plain:
            await run_sync(control.send, home, CANCEL)
        with pytest.raises(Refused, match="is held by process 7") as locked:
            await run_sync(control.send, home, Command(Verb.CANCEL, "locked"))
    assert (plain.value.exit_code, locked.value.exit_code) == (Exit.FAILED, Exit.LOCKED)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"\xff\xfe\x00",
        b"null",
        b"[1, 2]",
        b"{}",
        b'{"verb": "explode"}',
        b'{"verb": ["cancel"]}',
        b'{"verb": "cancel", "ticket": 5}',
        b'{"verb": "cancel", "ticket": ["a"]}',
        b'{"verb": "cancel", "ticket": "\\ud800"}',
        b'{"verb": "cancel", "ticket": "\\u001b[31m"}',
        b'{"verb": "retry", "ticket": "fix", "fresh": "yes"}',
        b"[" * 100_000,
        b'{"verb": "cancel"' + b" " * 2_000_000 + b"}",
    ],
    ids=lambda line: repr(line[:40]),
)
async def test_no_line_ends_the_daemon(home: Home, line: bytes) -> None:
    """A line that is no command is refused as a misuse, is not performed, and the next command is obeyed."""
    heard: list[Command] = []

    async def note(command: Command) -> str:
        heard.append(command)
        return await obey(command)

    async with listening(home, note):
        try:
            told = await say(home, line + b"\n")
        except anyio.BrokenResourceError:  # too much: the daemon hung up while we were writing
            told = {"exit": int(Exit.USAGE)}
        assert told["exit"] == Exit.USAGE
        assert "\x1b" not in str(told)
        assert await still_works(home)
    assert heard == [CANCEL]


@pytest.mark.anyio
async def test_a_client_that_hangs_up_ends_nothing(home: Home) -> None:
    """A client that says nothing, half a line, or does not wait for the answer is forgotten."""
    async with listening(home):
        assert (await say(home, b"", end=True))["exit"] == Exit.USAGE
        assert (await say(home, b'{"verb": ', end=True))["exit"] == Exit.USAGE
        async with client(home) as stream:
            await stream.send(json.dumps({"verb": "pause"}).encode() + b"\n")
        assert await still_works(home)


@pytest.mark.anyio
async def test_a_slow_client_keeps_nobody_waiting(home: Home) -> None:
    """While clients say nothing, or half a line, others are answered; a slow one is when it has said all."""
    async with listening(home), client(home), client(home) as slow:
        await slow.send(b'{"verb": "pau')
        assert await still_works(home)
        await slow.send(b'se"}\n')
        assert await answer(slow) == {"text": "pause  False operator"}


@pytest.mark.anyio
async def test_a_slow_command_keeps_nobody_waiting(home: Home) -> None:
    """While one command is carried out another is answered."""
    go_on = anyio.Event()

    async def slow(command: Command) -> str:
        if command.verb is Verb.PAUSE:
            await go_on.wait()
        return await obey(command)

    async with listening(home, slow), client(home) as waiting:
        await waiting.send(b'{"verb": "pause"}\n')
        assert await still_works(home)
        go_on.set()
        assert await answer(waiting) == {"text": "pause  False operator"}


@pytest.mark.anyio
async def test_a_defect_of_one_command_stays_with_it(home: Home) -> None:
    """A command that fails in a way that nobody foresaw is told so, the log has it, and the daemon goes on."""
    stream = text_stream()
    log.configure(Redactor.of([]), stream)

    async def break_once(command: Command) -> str:
        if command.verb is Verb.PAUSE:
            raise ZeroDivisionError("s3cret")
        return await obey(command)

    async with listening(home, break_once):
        told = await say(home, b'{"verb": "pause"}\n')
        assert told["exit"] == Exit.FAILED
        assert "ZeroDivisionError" in str(told["error"])
        assert "s3cret" not in str(told)
        assert await still_works(home)
    assert json.loads(read_back(stream))["event"] == "command.failed"


@pytest.mark.anyio
async def test_the_socket_is_the_owners_alone(home: Home) -> None:
    """The socket has mode 0600, and is gone when nobody listens any more."""
    async with listening(home):
        mode = home.socket.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert "control.sock" not in os.listdir(home.path)  # noqa: PTH208  it need not lead anywhere


@pytest.mark.anyio
async def test_what_a_dead_daemon_left_is_replaced(home: Home) -> None:
    """A socket file that nobody listens on keeps no daemon from listening, and is no daemon to a client."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home.socket))
    with pytest.raises(NobodyListens, match=r"no daemon answers on .*Connection refused"):
        control.send(home, CANCEL)
    async with listening(home):
        assert await still_works(home)


@pytest.mark.anyio
async def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    """A state directory whose socket's path is longer than an address may be is steered all the same."""
    path = tmp_path / ("d" * 120) / ("e" * 120)
    home = Home(path, path / "queue")
    with pytest.raises(NobodyListens):
        control.send(home, CANCEL)
    home.prepare()
    async with listening(home):
        assert await still_works(home)


@contextmanager
def dying(home: Home, answer: str) -> Iterator[None]:
    """Let a daemon listen that dies with `answer` on its lips; it holds no lock."""
    words = [sys.executable, "-c", DIES, str(home.socket), answer]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listens\n"
        yield
        assert process.wait(PATIENT_S) == 0


@pytest.mark.parametrize("said", ["", '{"text": "fix is canc'])
def test_half_an_answer_is_none(home: Home, said: str) -> None:
    """A daemon that dies before its answer is complete may have done what it was told."""
    with dying(home, said), pytest.raises(NoAnswer, match="was told to cancel and has not answered: it may do it yet"):
        control.send(home, CANCEL)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a queue with one ticket whose file is there."""
    shell = Shell(tmp_path)
    shell("add", shell.ticket("fix"))
    shell.know("fix")
    return shell


def state_of(shell: Shell) -> State:
    """Return the state that the database has."""
    place = shell.database()
    state = place.store.read(tickets.get, "fix").ticket.state
    place.store.close()
    return state


def test_without_a_daemon_it_happens_here(shell: Shell) -> None:
    """While nobody holds the home a command is done by itself, and the ticket's file follows at once."""
    assert steer(shell.config, CANCEL) == "fix is cancelled"
    assert state_of(shell) is State.CANCELLED
    assert [*shell.files()] == ["cancelled/fix.md"]
    assert steer(shell.config, Command(Verb.RETRY, "fix")) == "fix is ready"
    assert [*shell.files()] == ["fix.md"]
    assert shell.home.holder() is None


def test_a_file_that_cannot_follow_undoes_nothing(shell: Shell) -> None:
    """A command is done although its file cannot be moved now; the file stays."""
    (shell.queue / "cancelled").touch()
    assert steer(shell.config, CANCEL) == "fix is cancelled"
    assert state_of(shell) is State.CANCELLED
    assert [*shell.files()] == ["fix.md"]


def test_a_dead_daemons_running_ticket_is_asked(shell: Shell) -> None:
    """A ticket that a dead daemon left running stops at the next start, and that is said."""
    place = shell.database()
    place.claim()
    place.store.close()
    assert steer(shell.config, CANCEL) == "fix is running: asked to stop (cancel); it happens at the next start"
    assert state_of(shell) is State.RUNNING


def test_a_silent_holder_is_left_alone(shell: Shell) -> None:
    """While a process holds the home and does not answer, a command ends with its pid and changes nothing."""
    with shell.home.lock(), pytest.raises(Locked, match=f"is held by process {os.getpid()}"):
        steer(shell.config, CANCEL, patience_s=0)
    assert state_of(shell) is State.READY


def test_a_holder_that_goes_is_waited_for(shell: Shell) -> None:
    """A command waits for a process that holds the home for a moment, and is done then."""
    holder = "import sys\nfrom pathlib import Path\nfrom runner.home import Home\nplace = Path(sys.argv[1])\n"
    holder += "with Home(place, place).lock():\n    print('held', flush=True)\n    sys.stdin.read()\n"
    words = [sys.executable, "-c", holder, str(shell.state)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(Locked, match=f"is held by process {process.pid}"):
            steer(shell.config, CANCEL, patience_s=0)
        process.stdin.close()
        assert steer(shell.config, CANCEL, patience_s=PATIENT_S) == "fix is cancelled"


def test_a_command_without_an_answer_is_not_given_twice(shell: Shell) -> None:
    """A command that a daemon heard and did not answer before it died is not done by the sender as well."""
    with dying(shell.home, ""), pytest.raises(NoAnswer):
        steer(shell.config, CANCEL)
    assert state_of(shell) is State.READY


def test_a_frozen_daemon_may_do_it_yet(shell: Shell) -> None:
    """A daemon that takes a command and says nothing in time is said to be able to do it still."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(shell.home.socket))
        listener.listen()
        with pytest.raises(NoAnswer, match="it may do it yet"):
            control.send(shell.home, CANCEL, timeout_s=0.1)
