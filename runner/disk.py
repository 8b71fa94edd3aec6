"""What the home holds, how large it is, and what of it goes when.

Looking follows no symlink, opens nothing that an agent could have made wait, and passes over what vanishes meanwhile.

Knows the home, the store and retention.py; does not know git or how anything is removed.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner import machine, transcript
from runner.config import Config
from runner.home import Home
from runner.retention import Kept, due_us
from runner.store import Rx, sessions, tickets
from runner.store.tickets import Row
from tickets.ticket import OVER

_ID_CHARS = 36
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's own
_PARTS = {
    "database": ("ticket-runner.sqlite3", "ticket-runner.sqlite3-wal", "ticket-runner.sqlite3-shm"),
    "queue": ("queue",),
    "repository": ("clone", "outbox.git", "modules"),
    "worktrees": ("worktrees",),
    "transcripts": ("claude",),
    "HOME of agents": ("user",),
    "temporary files": ("tmp",),
    "put aside": ("aside",),
    "being removed": ("trash",),
}


@dataclass(frozen=True, slots=True)
class Part:
    """Something in the home."""

    name: str
    size_bytes: int
    """On the disk."""


@dataclass(frozen=True, slots=True)
class Left:
    """What there is of a ticket."""

    ticket: str
    state: str
    size_bytes: Mapping[str, int]
    """By what it is; of what is in the database nothing is known."""
    removed_us: Mapping[str, int | None]
    """From when on each is removed, None for never; nothing for a ticket that is open."""

    @property
    def total_bytes(self) -> int:
        """Of all of it."""
        return sum(self.size_bytes.values())


@dataclass(frozen=True, slots=True)
class Usage:
    """A home on its disk."""

    path: str
    now_us: int
    parts: list[Part]
    other: list[str]
    """Names of what is there besides."""
    tickets: list[Left]
    """The largest first."""
    aside: list[str]
    """What was put aside, each with its note's words."""
    free_bytes: int | None
    min_free_bytes: int
    shortage: str | None
    """Which floor the machine is below, None when it is below none."""


def keep_days(config: Config) -> dict[Kept, float | None]:
    """Return how long is kept what has a key for it."""
    keep = config.keep
    return {
        Kept.WORKTREE: keep.worktrees_days,
        Kept.TRANSCRIPTS: keep.transcripts_days,
        Kept.MESSAGES: keep.messages_days,
    }


def written(home: Home) -> dict[str, list[Path]]:
    """Return all that Claude Code wrote under the id of a session, by that id."""
    found: dict[str, list[Path]] = defaultdict(list)
    for pattern in ("*/*", "projects/*/*"):
        for path in home.claude.glob(pattern):
            found[path.name[:_ID_CHARS]].append(path)
    return found


def transcripts_of(home: Home, ticket: str, ids: Iterable[str], by_id: Mapping[str, list[Path]]) -> list[Path]:
    """Return all of `written` that is a ticket's: its directory, and what is elsewhere under its sessions' ids."""
    own = transcript.directory(home.claude, home.worktrees / ticket)
    elsewhere = [path for id_ in ids for path in by_id.get(id_, ()) if path.parent != own]
    return [own, *elsewhere] if own.is_dir() else elsewhere


def rows_here(rx: Rx, home: str) -> tuple[int, list[tuple[Row, list[str]]]]:
    """Return the time, and the tickets of a home, each with the ids of its sessions."""
    rows = [row for row in tickets.all_rows(rx) if row.is_of(home)]
    return rx.now_us, [(row, [each.id for each in sessions.sessions_of(rx, row.ticket.id)]) for row in rows]


def usage(config: Config, now_us: int, rows: Iterable[tuple[Row, list[str]]]) -> Usage:
    """Return what the home of a configuration holds, of these tickets in particular."""
    home = Home.of(config)
    there = {path.name for path in _children(home.path)}
    known = {name for names in _PARTS.values() for name in names}
    by_id = written(home)
    lefts = [left for row, ids in rows if (left := _left(config, row, ids, by_id)).size_bytes]
    return Usage(
        path=str(home.path),
        now_us=now_us,
        parts=[
            Part(what, size(*(home.path / name for name in names)))
            for what, names in _PARTS.items()
            if there.intersection(names)
        ],
        other=sorted(there - known - {"lock", "control.sock", "repository", "launch-cli"}),
        tickets=sorted(lefts, key=lambda left: -left.total_bytes),
        aside=[_noted(path) for path in sorted(_children(home.aside)) if path.suffix not in {".txt", ".git"}],
        free_bytes=machine.look(home.path).disk_bytes,
        min_free_bytes=config.machine.min_free_disk,
        shortage=machine.short(config),
    )


def removable_bytes(home: Home) -> int:
    """Return what is taken by all that is of tickets and is removed or put aside one day; the database is not."""
    return size(*(home.path / name for name in ("worktrees", "claude", "tmp", "aside", "trash")))


def size(*paths: Path) -> int:
    """Return what is taken on the disk by these and all below them; what has several names counts once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for status in _walk(paths):
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
        total += status.st_blocks * _BLOCK_BYTES
    return total


def _left(config: Config, row: Row, ids: list[str], by_id: Mapping[str, list[Path]]) -> Left:
    home, ticket, keep = Home.of(config), row.ticket.id, keep_days(config)
    places = {
        Kept.WORKTREE: [home.worktrees / ticket],
        Kept.TRANSCRIPTS: transcripts_of(home, ticket, ids, by_id),
        Kept.TMP: [home.tmp_of(ticket)],
    }
    sizes = {what: size(*paths) for what, paths in places.items()}
    there = {what: bytes_ for what, bytes_ in sizes.items() if bytes_}
    over = row.ticket.state in OVER
    times = {str(what): due_us(what, row.changed_at_us, keep_days=keep) for what in there} if over else {}
    return Left(ticket, row.ticket.state, {str(what): bytes_ for what, bytes_ in there.items()}, times)


def _walk(paths: Iterable[Path]) -> Iterator[os.stat_result]:
    left = [str(path) for path in paths]
    while left:
        place = left.pop()
        try:
            status = os.lstat(place)
            yield status
            if stat.S_ISDIR(status.st_mode):
                with os.scandir(place) as entries:
                    left += [entry.path for entry in entries]
        except OSError:  # gone, or not for us to read
            continue


def _children(place: Path) -> list[Path]:
    try:
        return [*place.iterdir()]
    except OSError:
        return []


def _noted(path: Path) -> str:
    note = path.with_name(f"{path.name}.txt")
    if note.is_symlink() or not note.is_file():
        return str(path)
    return f"{path}: {' '.join(note.read_text(errors='replace').split())}"  # names of files can be of several lines
