"""The door to the process table: mark what a ticket started, find it, and end it.

Every process that we start carries a cookie in its environment, which all of its
descendants inherit, however far they fork, detach or outlive us. The one invariant:
a signal goes only to a process that was proved to carry the cookie, or to descend
from one that does, never to whatever got its pid since.

Found too is a living descendant that dropped the cookie (`env -i`, a rewritten
title, an unreadable environ). Not found is one that dropped it and whose ancestors
are gone. Knows /proc and pidfds; does not know Claude, the store or who starts what.
"""

import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

from runner.errors import RunnerError

Kind = Literal["agent", "effect"]

COOKIE = "TICKET_RUNNER_COOKIE"
CLI = "TICKET_RUNNER_CLI"  # "<pid> <parent>" of the CLI, set by the launcher
COMMAND = "TICKET_RUNNER_COMMAND"  # the same of a command's shell


class ProcessesRemain(RunnerError):
    """A ticket's processes do not end, not even by KILL."""

    def __init__(self, ticket: str, pids: tuple[int, ...]) -> None:
        super().__init__(ticket, pids)
        self.ticket, self.pids = ticket, pids

    def __str__(self) -> str:
        return (
            f"ticket {self.ticket}: processes {', '.join(map(str, self.pids))} do not end, not even by KILL:"
            " look at what they wait for (ps -o pid,user,stat,wchan,args), then retry"
        )


@dataclass(frozen=True, slots=True)
class Cookie:
    """The mark of what one claim of a ticket, or one of its effects, starts.

    `home` is the absolute path of the state directory; `token` is the claim's, or names the effect in its stead.
    """

    home: str
    ticket: str
    token: int
    kind: Kind = "agent"

    def __post_init__(self) -> None:
        if not self.home.startswith("/") or not re.fullmatch(r"[A-Za-z0-9._-]+", self.ticket) or self.token < 0:
            raise ValueError(f"no cookie for ticket {self.ticket!r} of home {self.home!r}")

    def environment(self) -> dict[str, str]:
        """Return the variable that marks a process and its descendants."""
        return {COOKIE: f"{self.kind} {self.token} {self.ticket} {self.home}"}

    @classmethod
    def parse(cls, text: str) -> "Cookie | None":
        """Return the cookie that `environment` wrote, or None for anything else."""
        match = re.fullmatch(r"(agent|effect) (\d+) ([A-Za-z0-9._-]+) (/.*)", text, re.DOTALL)
        if match is None:
            return None
        return cls(match[4], match[3], int(match[2]), "agent" if match[1] == "agent" else "effect")


@dataclass(frozen=True, slots=True)
class Found:
    """A living process with a cookie. `start` is in clock ticks since boot: with the pid it names one process."""

    pid: int
    start: int
    name: str
    cookie: Cookie
    is_cli: bool = False
    orphaned: bool = False
    """It is a CLI and the daemon that started it is gone."""
    command: int | None = None
    """Pid of the shell of `run_command` that it is or descends from."""


@dataclass(frozen=True, slots=True)
class Reaped:
    """What `reap` ended."""

    processes: tuple[Found, ...]
    cli_alive: bool
    cli_killed: bool
    """The CLI was deaf to TERM, so its transcript and cost may lack the end."""


@dataclass(frozen=True, slots=True)
class _Stat:
    name: str
    parent: int
    start: int


@dataclass(frozen=True, slots=True)
class _Seen:
    pid: int
    stat: _Stat
    marks: Mapping[str, str]


def identity(pid: int) -> int | None:
    """Return the start time of a living process, in clock ticks since boot; None if there is none."""
    stat = _stat(pid)
    return stat.start if stat is not None else None


def is_alive(pid: int, start: int) -> bool:
    """Say whether process `pid` that started at `start` still lives; a zombie does not."""
    return identity(pid) == start


def find(home: str, ticket: str | None = None, kind: Kind | None = None, token: int | None = None) -> list[Found]:
    """Return every living process with a cookie of this home (and ticket, kind, token), but never ourselves."""
    seen = [entry for pid in _pids() if (entry := _look(pid)) is not None]
    unmarked: dict[int, list[_Seen]] = defaultdict(list)
    found: list[Found] = []
    for entry in seen:
        cookie = Cookie.parse(entry.marks.get(COOKIE, ""))
        if cookie is None:
            unmarked[entry.stat.parent].append(entry)
        elif (home, ticket or cookie.ticket, kind or cookie.kind) == (cookie.home, cookie.ticket, cookie.kind) and (
            token in (None, cookie.token)
        ):
            found.append(_found(entry, cookie))
    for parent in found:  # grows meanwhile
        found += [_adopted(child, parent) for child in unmarked[parent.pid] if _is_child(child, parent)]
    return sorted(found, key=lambda process: process.pid)


async def ended(cookie: Cookie) -> None:
    """Wait until every process with exactly this cookie has ended by itself."""
    empty = 0
    while empty < 2:  # noqa: PLR2004  as in _sweep
        alive = await _find(cookie.home, cookie.ticket, cookie.kind, cookie.token)
        await _gone(alive)
        empty = 0 if alive else empty + 1


async def end(cookie: Cookie, *, kill_wait_s: float = 10.0) -> None:
    """KILL every process with exactly this cookie.

    Raises:
        ProcessesRemain: Some still live after `kill_wait_s`.
    """
    await _sweep(cookie.ticket, [], lambda: find(cookie.home, cookie.ticket, cookie.kind, cookie.token), kill_wait_s)


async def reap(
    home: str,
    ticket: str,
    *,
    cli_grace_s: float = 8.0,
    orphan_wait_s: float = 5.0,
    kill_wait_s: float = 10.0,
    kind: Kind = "agent",
) -> Reaped:
    """End every process of the ticket: TERM and time to the CLI, then KILL to all until a look finds none.

    Args:
        home: Absolute path of the state directory.
        ticket: The ticket's id.
        cli_grace_s: How long a CLI may take after TERM, in which it ends its Bash tree and writes transcript and cost;
            it takes 2 to 5 s.
        orphan_wait_s: How long a CLI without its daemon is left alone first: its daemon's death sent it a TERM already.
        kill_wait_s: How long KILL may take in all.
        kind: Which of the ticket's processes.

    Raises:
        ProcessesRemain: Some still live after that.
    """
    first = await _find(home, ticket, kind)
    clis = [process for process in first if process.is_cli]
    with anyio.move_on_after(orphan_wait_s):
        await _gone(process for process in clis if process.orphaned)
    _signal(clis, signal.SIGTERM)
    with anyio.move_on_after(cli_grace_s):
        await _gone(clis)
    killed = any(is_alive(cli.pid, cli.start) for cli in clis)
    ended = await _sweep(ticket, first, lambda: find(home, ticket, kind), kill_wait_s)
    return Reaped(processes=ended, cli_alive=bool(clis), cli_killed=killed)


async def end_command(pid: int, start: int | None, cookie: Cookie, *, kill_wait_s: float = 10.0) -> None:
    """KILL one command: its shell (`pid`, `start`), what is in the shell's group, and what descends from it.

    Other commands of the same cookie go on.

    Raises:
        ProcessesRemain: Some still live after `kill_wait_s`.
    """
    # The group is what finds an orphan that dropped the cookie. While it has members the kernel gives its number to
    # nobody else, and when it has none the shell has just ended: pids are handed out in a circle, so it is not reused.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)

    def left() -> list[Found]:
        return [process for process in find(cookie.home, cookie.ticket, cookie.kind) if process.command == pid]

    shell = [Found(pid, start, "sh", cookie, command=pid)] if start is not None else []
    await _sweep(cookie.ticket, shell, left, kill_wait_s)


async def _find(home: str, ticket: str, kind: Kind, token: int | None = None) -> list[Found]:
    # In a thread: to read the environ of a process that is stuck in the kernel can take as long as it is stuck.
    return await anyio.to_thread.run_sync(find, home, ticket, kind, token, abandon_on_cancel=True)


async def _sweep(
    ticket: str, first: Iterable[Found], look: Callable[[], list[Found]], kill_wait_s: float
) -> tuple[Found, ...]:
    """KILL `first` and what `look` finds, until two looks in a row find nothing; return all of it.

    Two, because a process in the middle of an exec shows no environment for a moment.
    """
    ended: dict[tuple[int, int], Found] = {}
    alive, empty = list(first), 0
    with anyio.move_on_after(kill_wait_s):
        while empty < 2:  # noqa: PLR2004  see above
            ended |= {(process.pid, process.start): process for process in alive}
            _signal(alive, signal.SIGKILL)
            await _gone(alive)
            alive = await anyio.to_thread.run_sync(look, abandon_on_cancel=True)
            empty = 0 if alive else empty + 1
        return tuple(ended.values())
    remaining = {process.pid for process in (*ended.values(), *alive) if is_alive(process.pid, process.start)}
    raise ProcessesRemain(ticket, tuple(sorted(remaining)))


async def _gone(processes: Iterable[Found]) -> None:
    """Wait until each has ended, whoever its parent is."""
    for process in processes:
        with _pidfd(process.pid, process.start) as pidfd:
            if pidfd is not None:
                await anyio.wait_readable(pidfd)


def _signal(processes: Iterable[Found], number: signal.Signals) -> None:
    for process in processes:
        with _pidfd(process.pid, process.start) as pidfd, suppress(ProcessLookupError, PermissionError):
            if pidfd is not None:
                signal.pidfd_send_signal(pidfd, number)


@contextmanager
def _pidfd(pid: int, start: int) -> Iterator[int | None]:
    """Open exactly this process, or yield None if it has ended: the start time is compared while it is held."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield pidfd if is_alive(pid, start) else None
    finally:
        os.close(pidfd)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]  # noqa: PTH208


def _look(pid: int) -> _Seen | None:
    """Read one process; the pidfd, opened before and asked after, proves that all was read of the same one."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        stat, marks = _stat(pid), _marks(pid)
        with suppress(PermissionError):  # lives and is not ours
            signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return None
    finally:
        os.close(pidfd)
    return _Seen(pid, stat, marks) if stat is not None else None


def _stat(pid: int) -> _Stat | None:
    """Read /proc/PID/stat (proc_pid_stat(5)); None if the process is gone or a zombie."""
    try:
        text = os.fsdecode(Path(f"/proc/{pid}/stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    head, _, tail = text.rpartition(") ")
    fields = tail.split()
    if fields[0] in {"Z", "X"}:
        return None
    return _Stat(name=head.partition("(")[2], parent=int(fields[1]), start=int(fields[19]))


def _marks(pid: int) -> dict[str, str]:
    """Return our variables in the environment that the process was started with."""
    try:
        text = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    pairs = (line.partition("=") for line in text.split("\0"))
    return {name: value for name, _, value in pairs if name in (COOKIE, CLI, COMMAND)}


def _found(entry: _Seen, cookie: Cookie) -> Found:
    cli, parent = _pid_and_parent(entry.marks.get(CLI))
    return Found(
        pid=entry.pid,
        start=entry.stat.start,
        name=entry.stat.name,
        cookie=cookie,
        is_cli=entry.pid == cli,
        orphaned=entry.pid == cli and entry.stat.parent != parent,
        command=_pid_and_parent(entry.marks.get(COMMAND))[0],
    )


def _adopted(child: _Seen, parent: Found) -> Found:
    return Found(child.pid, child.stat.start, child.stat.name, parent.cookie, command=parent.command)


def _is_child(child: _Seen, parent: Found) -> bool:
    """Say whether both still live and are child and parent; asked in this order, no reused pid can pass."""
    stat = _stat(child.pid)
    return (
        stat is not None
        and (stat.start, stat.parent) == (child.stat.start, parent.pid)
        and is_alive(parent.pid, parent.start)
    )


def _pid_and_parent(text: str | None) -> tuple[int, int] | tuple[None, None]:
    match = re.fullmatch(r"(\d+) (\d+)", text or "")
    return (int(match[1]), int(match[2])) if match is not None else (None, None)
