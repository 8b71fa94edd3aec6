"""The children that we start: what becomes the Claude CLI, and shell lines of the configuration.

Each starts through launcher.py. The one invariant: a child gets the environment that
it was given and nothing else of ours, carries its cookie, and does not outlive us, unless
to die half way would be worse.

Knows launcher.py and processes.py; does not know Claude's SDK (which starts the CLI by
the path and the variable made here), the store or git.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

from runner.processes import CLI, COMMAND, Cookie, end_command, identity

LAUNCH = "TICKET_RUNNER_LAUNCH"
LAUNCHER = Path(__file__).with_name("launcher.py")

SDK_SETS = (
    "CLAUDE_AGENT_SDK_DERIVED_CLIENT_APP",
    "CLAUDE_AGENT_SDK_VERSION",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_SDK_READS_SESSION_STATE",
    "PWD",
)
"""What the SDK itself tells its CLI (claude-agent-sdk 0.2.189, `subprocess_cli.py`, `connect`)."""

ALLOWED = frozenset(
    {
        *("PATH", "SHELL", "TERM", "USER", "LOGNAME"),  # programs break without them
        *("LANG", "LANGUAGE", "TZ", "TZDIR"),  # and LC_*: names of files, dates of commits
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),  # behind one, nothing is reached without it
        *("http_proxy", "https_proxy", "no_proxy", "all_proxy"),
    }
)
"""What children may inherit. Not: the session's bus, the ssh agent, XDG_*, what is systemd's, git's or Claude's."""


OUTPUT_BYTES = 16 * 1024
"""Of the end of an output, that are kept of it at most."""
_HELD_BYTES = OUTPUT_BYTES + 16 * 1024
"""By more than a secret is long: it is kept whole until it is taken out, since part of one is not recognised."""

_left: list["subprocess.Popen[bytes]"] = []
"""What was told to outlive us and was left running: kept, since the finalizer of its handle would complain."""


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a shell line ended. `output` is the tail of stdout and stderr together; of one that outlives, of stdout."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    output: str
    duration_s: float
    errors: str = ""
    """Of one that outlives, the tail of stderr."""


def write_launcher(directory: Path) -> Path:
    """Write the executable that the SDK is to take for the CLI (`cli_path`); it hands over to launcher.py."""
    text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(LAUNCHER))} "$@"\n'
    path = directory.absolute() / "launch-cli"
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".launch-cli.", delete=False) as file:
        file.write(text)
    Path(file.name).chmod(0o700)
    return Path(file.name).replace(path)


def launch_variable(cli: Path, *, cookie: Cookie, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what goes into `ClaudeAgentOptions.env`, so that the launcher becomes `cli` with `environment`.

    The CLI gets `environment`, the cookie and what the SDK tells it (`SDK_SETS`); of the rest of the daemon's
    environment, and of this variable, nothing. It is ended by TERM when the calling thread ends.

    Raises:
        RuntimeError: Not in the main thread.
    """
    return _launch(str(cli.absolute()), signal.SIGTERM, cookie, environment, SDK_SETS)


def base_environment(
    extra: Mapping[str, str], *, home_dir: Path, tmp_dir: Path, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return what a child may have of our environment (`ALLOWED`, LC_*), its HOME and TMPDIR, and `extra`."""
    kept = {name: value for name, value in inherited.items() if name in ALLOWED or name.startswith("LC_")}
    return {**kept, "HOME": str(home_dir), "TMPDIR": str(tmp_dir), **extra}


async def run_command(
    line: str,
    *,
    cwd: Path,
    environment: Mapping[str, str],
    cookie: Cookie,
    timeout_s: float,
    redact: Callable[[str], str] = str,
    stdin: bytes = b"",
    outlives: bool = False,
) -> CommandEnd:
    """Run a line of shell in `environment` and the cookie alone, and leave nothing of it alive.

    It ends when the shell does: what the shell left behind is ended then, as is everything at the time limit, at
    a cancellation, or (the shell) at our death.

    Args:
        line: For `/bin/sh -c`. Others can read it, so it must hold no secret.
        cwd: Where it runs.
        environment: Complete, as of `base_environment`.
        cookie: Of the claim that it is run for.
        timeout_s: When all of it is killed.
        redact: Takes the secrets out of the output, before its end is kept.
        stdin: What it can read.
        outlives: It goes on after our death or a cancellation, to its own end. It writes into files without a name
            in `cwd`, since a pipe without a reader would end it.

    Raises:
        OSError: It cannot be started, as when `cwd` does not exist.
        ProcessesRemain: Some of it does not end.
        RuntimeError: Not in the main thread.
    """
    began = time.monotonic()
    death_signal = None if outlives else signal.SIGKILL
    launch = _launch("/bin/sh", death_signal, cookie, environment, (), new_session=True, pid_variable=COMMAND)
    with ExitStack() as stack:
        source = stack.enter_context(_readable(stdin))
        out = stack.enter_context(closing(_File(cwd) if outlives else _Pipe()))
        err = stack.enter_context(closing(_File(cwd))) if outlives else None
        process = _start(line, cwd, launch, source, out.writing, err.writing if err else subprocess.STDOUT)
        start = identity(process.pid)
        is_over = False
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(out.follow)
                with anyio.move_on_after(timeout_s) as limit:
                    await _ended(process)
                tasks.cancel_scope.cancel()
            is_over = True
        finally:
            if is_over or not outlives:
                with anyio.CancelScope(shield=True):
                    await end_command(process.pid, start, cookie)
                    await _ended(process)
            else:
                _left.append(process)
        returncode = await _ended(process)
        return CommandEnd(
            exit_code=returncode if returncode >= 0 else None,
            signal=-returncode if returncode < 0 else None,
            timed_out=limit.cancelled_caught,
            output=_text(out.tail(), redact),
            duration_s=time.monotonic() - began,
            errors=_text(err.tail(), redact) if err else "",
        )


def _start(
    line: str, cwd: Path, launch: Mapping[str, str], stdin: int, stdout: int, stderr: int
) -> "subprocess.Popen[bytes]":
    # Not asyncio's: its `wait` waits also for the end of each pipe, which a process left behind keeps open, and its
    # finalizer kills what is to outlive us.
    return subprocess.Popen(  # noqa: S603  a shell line of the configuration
        [sys.executable, "-I", "-S", str(LAUNCHER), "-c", line],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env={**os.environ, **launch},
    )


async def _ended(process: "subprocess.Popen[bytes]") -> int:
    if process.returncode is None:
        pidfd = os.pidfd_open(process.pid)
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)
    return process.wait()


def _launch(
    program: str,
    death_signal: signal.Signals | None,
    cookie: Cookie,
    environment: Mapping[str, str],
    inherit: Sequence[str],
    *,
    new_session: bool = False,
    pid_variable: str = CLI,
) -> dict[str, str]:
    # The death signal comes when the *thread* that started the child ends, not the process.
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("children are started from the main thread only: they are ended when their thread ends")
    launch = {
        "program": program,
        "parent": os.getpid(),
        "death_signal": death_signal or 0,
        "new_session": new_session,
        "pid_variable": pid_variable,
        "environment": {**environment, **cookie.environment()},
        "inherit": list(inherit),
    }
    return {LAUNCH: json.dumps(launch), **cookie.environment()}


@contextmanager
def _readable(content: bytes) -> Iterator[int]:
    """Open a file in memory that holds `content`: unlike a pipe it never waits for a reader."""
    with os.fdopen(os.memfd_create("stdin"), "w+b") as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


class _Pipe:
    """What a child writes, through a pipe: of it only the end is ever kept."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._bytes = bytearray()

    async def follow(self) -> None:
        """Read whatever comes, until cancelled: nobody waits for its end, which a process left behind can put off."""
        while True:
            await anyio.wait_readable(self._reading)
            self._read()

    def tail(self, *, at_most: int = 1024 * 1024) -> bytes:
        """Return the end, with what is there still, but not for ever: a writer that we could not find may go on."""
        with suppress(BlockingIOError):
            while at_most > 0 and (count := self._read()):
                at_most -= count
        return bytes(self._bytes)

    def close(self) -> None:
        """Close both ends."""
        os.close(self._reading)
        os.close(self.writing)

    def _read(self) -> int:
        chunk = os.read(self._reading, 64 * 1024)
        self._bytes += chunk
        excess = len(self._bytes) - _HELD_BYTES
        if excess > 0:
            del self._bytes[:excess]
        return len(chunk)


class _File:
    """What a child writes, in a file without a name: it is there as long as the child, whatever becomes of us."""

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  closed by `close`
        self.writing = self._file.fileno()

    async def follow(self) -> None:
        """Return at once: it fills without us."""

    def tail(self) -> bytes:
        """Return the end."""
        size = os.fstat(self.writing).st_size
        return os.pread(self.writing, _HELD_BYTES, max(size - _HELD_BYTES, 0))

    def close(self) -> None:
        """Close it; it is gone when the last writer has closed it, too."""
        self._file.close()


def _text(held: bytes, redact: Callable[[str], str]) -> str:
    """Return the end of what was held, without secrets and from a whole character on; what is no UTF-8 is replaced.

    What was held beyond `OUTPUT_BYTES` may begin with a part of a secret, and is dropped when it has served.
    """
    excess = held[: max(len(held) - OUTPUT_BYTES, 0)]
    text = redact(held.decode(errors="replace"))[len(redact(excess.decode(errors="replace"))) :]
    return re.sub(rb"\A[\x80-\xbf]{1,3}", b"", text.encode()[-OUTPUT_BYTES:]).decode()
