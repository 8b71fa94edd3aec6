"""Compare what is said in one place with what is in another, and say where they differ.

The log against the tables, sessions and the ledger against transcripts, tickets against
worktrees, runs against processes. Looking changes nothing and needs no lock: while a
daemon works, only what two looks in a row find is told, since one can meet a ticket half
way between two places.

Knows where everything is; does not know git, the SDK or how a ticket is worked on.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from runner import processes, transcript
from runner.accounts import bill_of
from runner.budget import CostKind
from runner.config import Config
from runner.events import Event, fold_log
from runner.home import Home
from runner.parts import local_copies
from runner.session import Kind, Transcript, session_id
from runner.store import Rx, Store, audit, effects, log, runs, sessions, tickets
from runner.store.audit import EpochRow, Numbers, Paused
from runner.store.effects import EffectRow, EffectState
from runner.store.runs import RunRow
from runner.store.sessions import SessionRow
from runner.store.tickets import Row
from runner.worktree import Place, Repository, branch_ref
from tickets.moves import IllegalMove
from tickets.ticket import OPEN, State

_AHEAD = 8
"""Generations beyond the stored ones that a ticket's next claim would find by their ids."""
_ROUNDING_MICROUSD = 1
_BY_HAND = "restore a backup, or report it with the output of `ticket-runner events`"
_START = "`ticket-runner start` goes on from here, or `fsck --repair`"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that two places say differently, or that a person may want to know."""

    ticket: str
    """"" for the queue and the home."""
    what: str
    todo: str
    differs: bool = True
    """False: it is as it may be."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What the store says, all of one moment."""

    numbers: list[Numbers]
    pauses: tuple[Paused | None, Paused | None]
    rows: dict[str, Row]
    facts: dict[str, list[Event] | None]
    """None where a stored fact cannot be read."""
    sessions: list[SessionRow]
    runs: list[RunRow]
    claimed: list[EffectRow]
    epochs: dict[int, EpochRow]


def examine(config: Config, store: Store) -> list[Finding]:
    """Return what differs, and is no passing moment.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    home = Home.of(config)
    if home.holder() is None:
        return look(config, store, daemon=False)
    first = look(config, store, daemon=True)
    again = frozenset(look(config, store, daemon=True)) if first else frozenset()
    return [finding for finding in first if finding in again]


def look(config: Config, store: Store, *, daemon: bool) -> list[Finding]:
    """Return what differs right now; `daemon`: one works here meanwhile."""
    home, tables = Home.of(config), store.read(tables_of)
    here = {id_: row for id_, row in tables.rows.items() if row.is_of(home.name)}
    found = chain(
        _log(tables),
        _queue(tables),
        _trees(local_copies(config), home, tables, here),
        _sessions(home, tables, here),
        _orphaned_transcripts(home, tables),
        _orphaned_tmp(home, tables),
        _processes(home, tables.rows, daemon=daemon),
        () if daemon else _runs(home, tables, here),
        _money(home, tables, here),
        _effects(home, tables, daemon=daemon),
    )
    return sorted(found, key=lambda finding: (not finding.differs, finding.ticket))


def tables_of(rx: Rx) -> Tables:
    """Read everything that is compared."""
    rows = {row.ticket.id: row for row in tickets.all_rows(rx)}
    return Tables(
        numbers=audit.numbers(rx),
        pauses=audit.paused(rx),
        rows=rows,
        facts={ticket: _facts(rx, ticket) for ticket in rows},
        sessions=[session for ticket in rows for session in sessions.sessions_of(rx, ticket)],
        runs=[run for ticket in rows for run in runs.runs_of(rx, ticket)],
        claimed=effects.effects(rx, states={EffectState.CLAIMED}),
        epochs={epoch.id: epoch for epoch in audit.epochs(rx)},
    )


def _facts(rx: Rx, ticket: str) -> list[Event] | None:
    try:
        return log.facts(rx, ticket)
    except (ValueError, TypeError, AssertionError):  # not JSON, or no object
        return None


def _log(tables: Tables) -> Iterator[Finding]:
    for numbers in tables.numbers:
        if numbers.stored is None:
            yield Finding(numbers.ticket, "the log has events of a ticket that is in no table", _BY_HAND)
        elif not numbers.agree:
            told = (
                f"{numbers.count} events numbered {numbers.first} to {numbers.last}, and its row says {numbers.stored}"
            )
            yield Finding(numbers.ticket, f"the log has a gap: {told}", _BY_HAND)
    for ticket, row in tables.rows.items():
        facts = tables.facts[ticket]
        if facts is None:
            yield Finding(ticket, "its log cannot be read", _BY_HAND)
            continue
        try:
            folded = fold_log(ticket, facts)
        except (IllegalMove, ValueError, TypeError) as error:
            yield Finding(ticket, f"its log is no life of a ticket: {error}", _BY_HAND)
            continue
        if folded != row.ticket:
            names = [name for name in row.ticket.__slots__ if getattr(folded, name) != getattr(row.ticket, name)]
            said = ", ".join(f"{n} {getattr(row.ticket, n)!s} (log: {getattr(folded, n)!s})" for n in names)
            yield Finding(ticket, f"its row is not what its log says: {said}", _BY_HAND)


def _queue(tables: Tables) -> Iterator[Finding]:
    stored, logged = tables.pauses
    if stored != logged:
        todo = "`ticket-runner pause`, then `ticket-runner resume` if it is to go on"
        yield Finding("", f"the queue's row and the log differ about its pause: {stored} and {logged}", todo)


def _trees(repository: Repository, home: Home, tables: Tables, here: dict[str, Row]) -> Iterator[Finding]:
    survey, worktrees = repository.survey(), home.worktrees.resolve()
    for path in sorted({*survey.registered, *worktrees.glob("*")}):
        if path.parent != worktrees or path.name not in tables.rows:
            what, todo = ("a worktree", "remove") if path in survey.registered else ("something", "move")
            yield Finding(path.name, f"{what} of no ticket is at {path}", f"look at it, then {todo} it")
    for ticket, row in here.items():
        if row.base_sha is None or row.ticket.state not in OPEN:
            continue
        path, anew = repository.path_of(ticket), "uncommitted work is lost; the next claim makes it anew"
        match repository.place(ticket):
            case Place.MISSING:
                yield Finding(ticket, f"it has no worktree at {path}", anew)
            case Place.GONE:
                yield Finding(
                    ticket, f"its worktree {path} is gone and still registered", f"{anew}, or `fsck --repair`"
                )
            case Place.FOREIGN:
                todo = "move it elsewhere: the next claim holds the ticket, or moves it aside if it is no repository"
                yield Finding(ticket, f"something else is at {path}, where its worktree was", todo)
            case Place.THERE if branch_ref(ticket) not in survey.branches:
                todo = "the next claim makes it where HEAD is, if that has a commit"
                yield Finding(ticket, f"its branch ticket/{ticket} is not in the clone", todo)
            case Place.THERE:
                pass


def _sessions(home: Home, tables: Tables, here: dict[str, Row]) -> Iterator[Finding]:
    """Compare what a next run would resume; Claude Code itself removes old transcripts, those of done tickets too."""
    for session in tables.sessions:
        row = here.get(session.ticket)
        if row is None or row.ticket.state is State.DONE or not session.confirmed or session.closed_reason is not None:
            continue
        path = transcript.path(home.claude, home.worktrees / session.ticket, session.id)
        state = _read(path).state
        if state is not Transcript.USABLE:
            todo = "put it back from a backup, or let the next run open a new session"
            yield Finding(session.ticket, f"the transcript of session {session.id} is {state}: {path}", todo)


def _orphaned_transcripts(home: Home, tables: Tables) -> Iterator[Finding]:
    """Name transcripts that no session has; one that the next claim finds by its id is as it may be."""
    known = {session.id for session in tables.sessions}
    latest: dict[str, int] = defaultdict(int)
    for session in tables.sessions:
        latest[session.ticket] = max(latest[session.ticket], session.generation)
    found_again = {
        session_id(row.source, ticket, generation): ticket
        for ticket, row in tables.rows.items()
        for generation in range(1, latest[ticket] + _AHEAD)
    }
    directories = {transcript.directory(home.claude, home.worktrees / ticket): ticket for ticket in tables.rows}
    for path in sorted(home.claude.glob("projects/*/*.jsonl")):
        ticket = found_again.get(path.stem)
        if path.stem in known:
            continue
        if ticket is None:
            todo = "keep it elsewhere if it is of use; nothing reads it"
            yield Finding(directories.get(path.parent, ""), f"a transcript of no session is at {path}", todo)
        else:
            what = f"session {path.stem} is on disk and in no table"
            yield Finding(ticket, what, "the next claim resumes or passes over it", differs=False)


def _orphaned_tmp(home: Home, tables: Tables) -> Iterator[Finding]:
    """Name temporary files that no ticket has; those of a ticket that is over go at the next upkeep."""
    known = {home.tmp_of(ticket) for ticket in tables.rows}
    for path in sorted(home.tmp.glob(home.tmp_pattern)):
        if path not in known:
            yield Finding("", f"temporary files of no ticket are at {path}", "remove them", differs=False)


def _processes(home: Home, rows: dict[str, Row], *, daemon: bool) -> Iterator[Finding]:
    left: dict[tuple[str, str], list[processes.Found]] = defaultdict(list)
    for found in processes.find(str(home.path)):
        row = rows.get(found.cookie.ticket)
        if daemon and (found.cookie.kind == "effect" or (row is not None and _is_of(found, row))):
            continue
        left[found.cookie.ticket, found.cookie.kind].append(found)
    for (ticket, kind), those in left.items():
        shown = ", ".join(f"{each.name} ({each.pid})" for each in those)
        if kind == "effect":
            todo = "let it end: the next start waits for it and then finds out what it did"
            yield Finding(ticket, f"the command of an effect outlived its daemon: {shown}", todo, differs=False)
        else:
            yield Finding(ticket, f"processes of no running claim live: {shown}", _START)


def _is_of(found: processes.Found, row: Row) -> bool:
    return row.ticket.state is State.RUNNING and row.ticket.token == found.cookie.token


def _runs(home: Home, tables: Tables, here: dict[str, Row]) -> Iterator[Finding]:
    """Name what a dead daemon left open; no daemon works here."""
    for run in tables.runs:
        if run.ended_at_us is None and run.ticket in here:
            alive = run.pid is not None and run.pid_started is not None and processes.is_alive(run.pid, run.pid_started)
            what = "its process lives" if alive else "it has no process"
            yield Finding(run.ticket, f"run {run.id} is open, no daemon works here and {what}", _START)
    for ticket, row in here.items():
        if row.owner is not None and tables.epochs[row.owner].home == home.name:
            yield Finding(ticket, "its claim's daemon is dead", "the next start takes it at once", differs=False)


def _money(home: Home, tables: Tables, here: dict[str, Row]) -> Iterator[Finding]:
    of_session: dict[str, list[RunRow]] = defaultdict(list)
    for run in tables.runs:
        if run.ticket in here:
            of_session[run.session].append(run)
    for session, those in of_session.items():
        if (
            _read(transcript.path(home.claude, home.worktrees / those[0].ticket, session)).state
            is not Transcript.USABLE
        ):
            continue
        for run, later in zip(those, [*those[1:], None], strict=True):
            yield from _bill(home, run, None if later is None else later.transcript_bytes)


def _bill(home: Home, run: RunRow, until_bytes: int | None) -> Iterator[Finding]:
    """Compare one run with what its part of the transcript tells, where that tells it."""
    tree = home.worktrees / run.ticket
    before = _read(transcript.path(home.claude, tree, run.session), until_bytes=run.transcript_bytes)
    if before.size_bytes < run.transcript_bytes:
        what = f"the transcript of session {run.session} is shorter than when run {run.id} began"
        yield Finding(run.ticket, what, "put it back from a backup; what was cut off is lost to the session")
        return
    keep = "nothing, or correct your books: the ledger is not changed once a run has ended"
    if run.kind in {Kind.RESUMED, Kind.FIX} and run.carried_microusd != (before.total_microusd or 0):
        total = _usd(before.total_microusd or 0)
        told = f"{_usd(run.carried_microusd)} was carried into it and the transcript says {total}"
        yield Finding(run.ticket, f"run {run.id}: {told}", keep)
    if run.cost is None:
        return
    again = bill_of(home.claude, tree, run, None, until_bytes=until_bytes).cost
    known = again.kind is not CostKind.UNKNOWN and not (
        run.cost.kind is CostKind.MEASURED and again.kind is CostKind.ESTIMATED  # its result was seen, and is better
    )
    if known and abs(again.microusd - run.cost.microusd) > _ROUNDING_MICROUSD:
        told = f"it is in the ledger with {_usd(run.cost.microusd)} and by its transcript cost {_usd(again.microusd)}"
        yield Finding(run.ticket, f"run {run.id}: {told}", keep)


def _effects(home: Home, tables: Tables, *, daemon: bool) -> Iterator[Finding]:
    ours = [epoch.id for epoch in tables.epochs.values() if epoch.home == home.name]
    alive = max(ours, default=None) if daemon else None
    for effect in tables.claimed:
        if effect.is_unknown:
            todo = f"find out, then `ticket-runner settle {effect.key}`"
            yield Finding(effect.ticket, f"whether {effect.key} happened is not known", todo, differs=False)
        elif effect.claimed_by in ours and effect.claimed_by != alive:
            what = f"a dead daemon was performing {effect.key}"
            yield Finding(effect.ticket, what, "the next start finds out what became of it", differs=False)


def _read(path: Path, *, until_bytes: int | None = None) -> transcript.Reading:
    try:
        return transcript.read(path, until_bytes=until_bytes)
    except OSError:
        return transcript.Reading(Transcript.UNUSABLE)


def _usd(microusd: int) -> str:
    return f"${microusd / 1e6:.6f}"
