"""Remove what tickets that are over leave behind, when it is due.

Safe to be killed anywhere: what goes is moved to the trash in the transaction that finds the ticket still over and
untouched, so that a claim that begins meanwhile meets all of it or nothing, and the trash is emptied by the next.

Knows the home, git and the store; retention.py says what is due. `Upkeep` blocks: call it in a
thread, as `Daily` does.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

import anyio
from anyio.to_thread import run_sync

from runner import log, processes
from runner.config import Config
from runner.disk import keep_days, transcripts_of, written
from runner.errors import RunnerError
from runner.events import Name
from runner.home import Home
from runner.retention import Kept, due
from runner.store import Rx, Store, StoreUnavailable, Tx, sessions, tickets
from runner.store import log as events
from runner.store.tickets import Row
from runner.worktree import (
    HangUp,
    Repository,
    RepositoryDenied,
    RepositoryMissing,
    RepositoryUnreachable,
    WorktreeLocked,
    clear,
)
from tickets.ticket import OVER

_WHY_CHARS = 300
_STAYS = "cannot be removed, since some of it belongs to another user: remove it as root"
_DAY_S = 24 * 3600.0
_ENDS = "nothing is removed: the daemon ends"


def over_here(rx: Rx, home: str) -> list[Row]:
    """Return the tickets of a home that are over, oldest first."""
    return [row for row in tickets.all_rows(rx, states=OVER) if row.is_of(home)]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is needed to remove something."""

    config: Config
    home: Home
    store: Store
    repository: Repository

    def run(self, is_stopping: Callable[[], bool] = lambda: False) -> list[str]:
        """Remove what is due of every ticket that is over, and return what was done, a line each."""
        done = []
        self._empty_the_trash()
        there = _There.of(self.home, self.repository)
        for row in self.store.read(over_here, self.home.name):
            if is_stopping():
                break
            try:
                done += [" ".join(f"{row.ticket.id}: {line}".split()) for line in self._tidy(row, there)]
            except (RunnerError, OSError) as error:
                log.warn("upkeep.failed", ticket=row.ticket.id, error=str(error))
                done.append(f"{row.ticket.id}: left as it is: {error}")
        for left in self._empty_the_trash():
            log.warn("upkeep.failed", error=f"{left} {_STAYS}")
            done.append(f"{left} {_STAYS}")
        return done

    def forget_tmp(self, ticket: str) -> None:
        """Remove the temporary files of a ticket, if it is over and no process of it lives."""
        try:
            row = self.store.read(tickets.get, ticket)
            if row.ticket.state in OVER and self.home.tmp_of(ticket).exists():
                self._tmp(row)
        except (RunnerError, OSError) as error:  # the next look does it
            log.warn("upkeep.failed", ticket=ticket, error=str(error))

    def _tidy(self, row: Row, there: "_There") -> Iterator[str]:
        ticket = row.ticket.id
        ids, was_said, now_us = self.store.read(_told, ticket)
        paths = there.transcripts(ticket, ids)
        known = {
            Kept.TMP: self.home.tmp_of(ticket).exists(),
            Kept.WORKTREE: self.home.clone.is_dir() and os.path.lexists(self.home.worktrees / ticket),
            Kept.TRANSCRIPTS: bool(paths),
            Kept.MESSAGES: was_said,
        }
        left = [what for what, is_there in known.items() if is_there]
        for what in due(left, row.changed_at_us, keep_days=keep_days(self.config), now_us=now_us):
            remove: Callable[[], str | None] = {
                Kept.TMP: partial(self._tmp, row),
                Kept.WORKTREE: partial(self._worktree, row, there),
                Kept.TRANSCRIPTS: partial(self._transcripts, row, paths),
                Kept.MESSAGES: partial(self._messages, row),
            }[what]
            if (said := remove()) is not None:
                yield said
        if ticket in there.registered and not known[Kept.WORKTREE]:
            self.repository.forget(ticket)  # what was moved to the trash before we were killed

    def _tmp(self, row: Row) -> str | None:
        self._away(row, lambda _: [self.home.tmp_of(row.ticket.id)])
        return None

    def _worktree(self, row: Row, there: "_There") -> str | None:
        ticket = row.ticket.id
        try:
            delivered = self.store.read(events.delivered, ticket)
            lost = self.repository.holds(ticket, delivered=delivered, ask=not there.unanswered)
        except WorktreeLocked as error:
            return f"worktree left: {error}"
        except (RepositoryDenied, RepositoryMissing, RepositoryUnreachable) as error:
            there.unanswered.append(ticket)
            return f"worktree left until the repository answers: {error}"
        if lost is not None:
            return self._put_aside(row, lost)
        gone = self._away(row, lambda _: [self.home.worktrees / ticket], Name.WORKTREE_REMOVED)
        if gone:
            self.repository.forget(ticket)
        return "worktree removed" if gone else None

    def _put_aside(self, row: Row, lost: str) -> str | None:
        def aside(tx: Tx) -> Path | None:
            if not self._is_untouched(tx, row):
                return None
            place = self.repository.put_aside(row.ticket.id, lost)
            tx.log(row.ticket.id, Name.WORKTREE_KEPT, where=str(place), why=lost[:_WHY_CHARS])
            return place

        with self.repository.alone():  # before the transaction, or all who write wait for whoever fetches
            place = self.store.transact(aside)
        return None if place is None else f"worktree put aside, since it {lost}: {place}"

    def _transcripts(self, row: Row, paths: list[Path]) -> str | None:
        def close(tx: Tx) -> list[Path]:
            last = sessions.last_session(tx, row.ticket.id)
            if last is not None and last.closed is None:
                sessions.close_session(tx, last.id, "transcript_removed")
            return paths

        return "transcripts removed" if self._away(row, close, Name.TRANSCRIPTS_REMOVED) else None

    def _messages(self, row: Row) -> str | None:
        def unsay(tx: Tx) -> int:
            count = sessions.unsay(tx, row.ticket.id) if self._is_untouched(tx, row) else 0
            if count:
                tx.log(row.ticket.id, Name.MESSAGES_REMOVED, count=count)
            return count

        count = self.store.transact(unsay)
        return f"{count} messages removed" if count else None

    def _away(self, row: Row, what: Callable[[Tx], list[Path]], name: Name | None = None) -> bool:
        """Move paths to the trash and log that, if the ticket is still over and has no process; then empty it."""

        def move(tx: Tx) -> bool:
            if not self._is_untouched(tx, row):
                return False
            self.home.trash.mkdir(mode=0o700, exist_ok=True)
            for path in what(tx):
                path.rename(self.home.trash / f"{path.parent.name}-{path.name}-{tx.now_us}")
            if name is not None:
                tx.log(row.ticket.id, name)
            return True

        moved = self.store.transact(move)
        self._empty_the_trash()
        return moved

    def _is_untouched(self, tx: Tx, row: Row) -> bool:
        """Return whether the ticket is as it was when it was looked at, and nothing of it runs."""
        now = tickets.get(tx, row.ticket.id)
        untouched = now.ticket == row.ticket and now.changed_at_us == row.changed_at_us
        return untouched and not processes.find(str(self.home.path), row.ticket.id)

    def _empty_the_trash(self) -> list[Path]:
        """Remove what is in it, and return what stays."""
        if self.home.trash.is_symlink():
            clear(self.home.trash)
        for path in self.home.trash.glob("*"):
            clear(path)
        return sorted(self.home.trash.glob("*"))


@dataclass(slots=True)
class _Look:
    """One look at all that may be due."""

    asked: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)
    done: list[str] = field(default_factory=list)


class Daily:
    """Upkeep at the start, once a day, and when it is asked for."""

    def __init__(self, upkeep: Upkeep) -> None:
        self._leaving, self._next = HangUp(), _Look()
        self._upkeep = replace(upkeep, repository=upkeep.repository.until(self._leaving))

    async def ask(self) -> list[str]:
        """Let it begin now, or once more when it is under way; return what was done, a line each, when it is over."""
        if self._leaving.is_set():
            return [_ENDS]
        look = self._next
        look.asked.set()
        await look.over.wait()
        return look.done

    def leave(self) -> None:
        """End it after the ticket that it is at, for which the repository is not waited for any more."""
        self._leaving.set()

    async def go_on(self) -> None:
        """Do it until cancelled, or told to leave."""
        while not self._leaving.is_set():
            look, self._next = self._next, _Look()
            try:
                look.done = await run_sync(self._upkeep.run, self._leaving.is_set)
            except StoreUnavailable as error:
                log.warn("upkeep.failed", error=str(error))
                look.done = [f"nothing more was removed: {error}"]
            except Exception:  # noqa: BLE001  it must not end the daemon
                log.defect("upkeep.failed")
                look.done = ["nothing more was removed: internal error: it is in the daemon's log"]
            look.over.set()
            with anyio.move_on_after(_DAY_S):
                await self._next.asked.wait()
        self._next.done = [_ENDS]
        self._next.over.set()

    async def forget_tmp(self, ticket: str) -> None:
        """Remove the temporary files of a ticket that is over."""
        await run_sync(self._upkeep.forget_tmp, ticket)


@dataclass(frozen=True, slots=True)
class _There:
    """What the home has of all tickets, looked at once."""

    home: Home
    by_id: Mapping[str, list[Path]]
    """See `disk.written`."""
    registered: frozenset[str]
    """The tickets for which the clone has a worktree registered."""
    unanswered: list[str] = field(default_factory=list)
    """For which the repository gave no answer: it is not asked again, since each time claims would wait for it."""

    @classmethod
    def of(cls, home: Home, repository: Repository) -> Self:
        """Look."""
        return cls(home, written(home), frozenset(path.name for path in repository.survey().registered))

    def transcripts(self, ticket: str, ids: list[str]) -> list[Path]:
        """Return all that Claude Code wrote of a ticket."""
        return transcripts_of(self.home, ticket, ids, self.by_id)


def _told(rx: Rx, ticket: str) -> tuple[list[str], bool, int]:
    """Return the ids of a ticket's sessions, whether what was said in them is stored, and the time."""
    ids = [session.id for session in sessions.sessions_of(rx, ticket)]
    return ids, sessions.was_said(rx, ticket), rx.now_us
