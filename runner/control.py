"""The socket by which a running daemon is steered, and the other end of it.

One connection, one line of JSON each way. While a daemon holds the lock every
change goes through here, so that it happens in the one place that also knows the
running claims. The socket is 0600 in a directory that is 0700.
"""

import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict

import anyio
from anyio.abc import SocketStream, TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream

from runner import log
from runner.commands import Command
from runner.errors import Exit, RunnerError, UsageError
from runner.home import Home

_LINE_LIMIT = 1024 * 1024
_TIMEOUT_S = 30.0
"""For the whole exchange: a command is one transaction."""


class Refused(RunnerError):
    """The daemon did not do what it was told."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text, exit_code)
        self.text, self.exit_code = text, Exit(exit_code)

    def __str__(self) -> str:
        return self.text


class NobodyListens(RunnerError):
    """No daemon answers on the socket."""


class NoAnswer(RunnerError):
    """A daemon took a command and did not say what became of it."""


async def listen(home: Home, perform: Callable[[Command], Awaitable[str]], *, task_status: TaskStatus[None]) -> None:
    """Serve commands until cancelled; started once a client can connect."""
    _remove(home)

    async def serve(stream: SocketStream) -> None:
        async with stream:
            with anyio.move_on_after(_TIMEOUT_S), suppress(anyio.BrokenResourceError, anyio.EndOfStream):
                await stream.send(json.dumps(await _answer(stream, perform)).encode() + b"\n")

    with home.socket_address() as address:
        listener = await anyio.create_unix_listener(address, mode=0o600)
    try:
        async with listener:
            task_status.started()
            await listener.serve(serve)
    finally:
        _remove(home)


def _remove(home: Home) -> None:
    home.socket.unlink(missing_ok=True)


async def _answer(stream: SocketStream, perform: Callable[[Command], Awaitable[str]]) -> dict[str, object]:
    """Return what to say to a client; nothing that it sends, and no defect of ours, ends the daemon."""
    try:
        line = await BufferedByteReceiveStream(stream).receive_until(b"\n", _LINE_LIMIT)
        return {"text": await perform(_command(line))}
    except (anyio.IncompleteRead, anyio.DelimiterNotFound) as error:
        return _refusal(UsageError(f"not a line: {error}"))
    except RunnerError as error:
        return _refusal(error)
    except (anyio.BrokenResourceError, anyio.EndOfStream):
        raise
    except Exception as error:  # noqa: BLE001  of one command; the claims beside it go on
        log.defect("command.failed")
        return _refusal(RunnerError(f"internal error: {type(error).__name__}: it is in the daemon's log"))


def _refusal(error: RunnerError) -> dict[str, object]:
    return {"error": str(error), "exit": int(error.exit_code)}


def _command(line: bytes) -> Command:
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415  the sending end does not need it

    try:
        command = TypeAdapter(Command).validate_json(line, strict=True)
    except ValidationError as error:
        raise UsageError(f"not a command of this version: {error.errors(include_url=False)[0]['msg']}") from error
    if not command.ticket.isprintable():
        raise UsageError(f"no ticket has the id {command.ticket!r}")
    return command


def send(home: Home, command: Command, *, timeout_s: float = _TIMEOUT_S) -> str:
    """Tell the daemon of `home` what to do and return what it says.

    Raises:
        NobodyListens: There is no daemon behind the socket.
        NoAnswer: It was told, and whether it did it is not known.
        Refused: It did not do it; says why, and the exit code of that.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        try:
            with home.socket_address() as address:
                client.connect(address)
        except OSError as error:
            raise NobodyListens(f"no daemon answers on {home.socket}: {error}") from error
        line = b""
        with suppress(OSError):
            client.sendall(json.dumps(asdict(command)).encode() + b"\n")
            with client.makefile("rb") as lines:
                line = lines.readline(_LINE_LIMIT)
    if not line.endswith(b"\n"):
        raise NoAnswer(f"the daemon was told to {command.verb} and has not answered: it may do it yet; see `status`")
    answer = json.loads(line)
    if "error" in answer:
        raise Refused(answer["error"], answer["exit"])
    return str(answer["text"])
