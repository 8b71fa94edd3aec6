"""Runs and what they cost.

A run begins behind the fence and with an allowance. Its end is accepted by its id,
once, whatever has become of the ticket since: money is never lost to the fence, and
never counted twice.
"""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile

from sqlalchemy import ColumnElement, RowMapping, case, func, or_, select, true, update

from runner.budget import RESERVE_MICROUSD, Cost, CostKind
from runner.events import Name, Value
from runner.outcome import Ending, Outcome, Result
from runner.session import Kind
from runner.store import claims, log, schema
from runner.store.connection import Rx, Tx
from runner.store.errors import UnknownRow
from runner.store.log import LET_GO

_r = schema.run.c
_e = schema.event.c

_FAILED_STARTS = frozenset({Outcome.UNEXPLAINED, Outcome.NEVER_STARTED})
_SAYS_NOTHING = frozenset({Outcome.WEATHER, Outcome.STOPPED, Outcome.ORPHANED})
_APART_US = 60_000_000
"""So much the two clocks of a run differ only when the machine stood still, or its clock was set."""
_KEPT_FROM_SPEAKING = _SAYS_NOTHING | {Outcome.UNAUTHORIZED, Outcome.NEVER_STARTED, Outcome.NO_CLI}


@dataclass(frozen=True, slots=True)
class RunRow:
    """A CLI process as stored."""

    id: str
    ticket: str
    number: int
    """Of the ticket's runs, from 1."""
    session: str
    token: int
    kind: Kind
    pid: int | None
    pid_started: int | None
    """When the process started, in clock ticks since boot: with the pid it names one process."""
    allowance_microusd: int
    carried_microusd: int
    transcript_bytes: int
    """Of the session's transcript before the run."""
    started_at_us: int
    ended_at_us: int | None
    outcome: Outcome | None
    confirmed: bool
    """A real assistant message was seen in it."""
    cost: Cost | None
    subtype: str | None
    terminal_reason: str | None
    api_error_status: int | None
    turns: int
    input_tokens: int
    output_tokens: int
    fingerprint: str | None
    """Of what there was when it ended; None when nobody looked."""
    cli_version: str | None


def begin_run(
    tx: Tx,
    *,
    ticket: str,
    token: int,
    session: str,
    kind: Kind,
    carried_microusd: int,
    transcript_bytes: int,
    allowance_microusd: int,
) -> RunRow:
    """Save a run before its process exists.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    claims.require(tx, ticket, token)
    last = select(func.coalesce(func.max(_r.number), 0)).where(_r.ticket == ticket)
    number = int(tx.connection.execute(last).scalar_one()) + 1
    run = f"{ticket}/{number}"
    values = {
        "id": run,
        "ticket": ticket,
        "number": number,
        "session": session,
        "token": token,
        "kind": kind,
        "allowance_microusd": allowance_microusd,
        "carried_microusd": carried_microusd,
        "transcript_bytes": transcript_bytes,
        "started_at_us": tx.now_us,
        "confirmed": False,
        "cut": False,
        "turns": 0,
        "input_tokens": 0,
        "output_tokens": 0,
    }
    tx.connection.execute(schema.run.insert().values(values))
    money = {"allowance_microusd": allowance_microusd, "carried_microusd": carried_microusd}
    tx.log(ticket, Name.RUN_STARTED, money, run=run, kind=str(kind), session=session)
    return get_run(tx, run)


def set_pid(tx: Tx, run: str, pid: int, pid_started: int) -> None:
    """Save which process a run is.

    Raises:
        UnknownRow: There is no such run.
    """
    saved = update(schema.run).where(_r.id == run).values(pid=pid, pid_started=pid_started).returning(_r.id)
    if tx.connection.execute(saved).one_or_none() is None:
        raise UnknownRow("run", run)


def end_run(
    tx: Tx,
    run: str,
    *,
    outcome: Outcome,
    cost: Cost,
    turns: int = 0,
    tokens: tuple[int, int] = (0, 0),
    ending: Ending | None = None,
    cli_version: str | None = None,
) -> bool:
    """Save how a run ended and what it cost; False when that is saved already, and nothing changes.

    No fence: the run is named by its id, and whoever knows its end first is believed. How long it was active is saved
    where the time between its start and its end says something else.

    Raises:
        UnknownRow: There is no such run.
    """
    ending = ending or Ending(resumed=False)
    result = ending.result or Result(subtype="", is_error=False)
    facts: dict[str, Value] = {
        "outcome": str(outcome),
        "cost_microusd": cost.microusd,
        "cost_kind": str(cost.kind),
        "cut": cost.cut,
        "subtype": result.subtype or None,
        "terminal_reason": result.terminal_reason,
        "api_error_status": result.api_error_status,
        "turns": turns,
    }
    values = facts | {
        "ended_at_us": tx.now_us,
        "input_tokens": tokens[0],
        "output_tokens": tokens[1],
        "cli_version": cli_version,
    }
    saved = (
        update(schema.run)
        .where(_r.id == run, _r.ended_at_us.is_(None))
        .values(values)
        .returning(_r.ticket, _r.started_at_us)
    )
    ended = tx.connection.execute(saved).one_or_none()
    if ended is None:
        get_run(tx, run)
        return False
    if ending.active_us is not None and abs(tx.now_us - ended.started_at_us - ending.active_us) > _APART_US:
        facts["active_us"] = ending.active_us
    tx.log(ended.ticket, Name.RUN_ENDED, facts, run=run)
    return True


def get_run(rx: Rx, run: str) -> RunRow:
    """Return one run.

    Raises:
        UnknownRow: There is none.
    """
    found = rx.connection.execute(select(schema.run).where(_r.id == run)).mappings().one_or_none()
    if found is None:
        raise UnknownRow("run", run)
    return _row(found)


def runs_of(rx: Rx, ticket: str) -> list[RunRow]:
    """Return a ticket's runs, the first one first."""
    query = select(schema.run).where(_r.ticket == ticket).order_by(_r.number)
    return [_row(found) for found in rx.connection.execute(query).mappings()]


def unended(rx: Rx, ticket: str | None = None, *, home: str | None = None) -> list[RunRow]:
    """Return the runs whose end is not saved, of one ticket or of all; of those that have a worktree in `home`."""
    query = select(schema.run).where(_r.ended_at_us.is_(None)).order_by(_r.ticket, _r.number)
    if ticket is not None:
        query = query.where(_r.ticket == ticket)
    if home is not None:
        query = query.where(_r.ticket.in_(select(schema.ticket.c.id).where(schema.ticket.c.home == home)))
    return [_row(found) for found in rx.connection.execute(query).mappings()]


def failed_starts(rx: Rx, ticket: str) -> int:
    """Return how many of the ticket's latest runs, in a row, never reached the model.

    Over its sessions, and since a person last let it go on; runs that the weather or
    we ended say nothing and are passed over.
    """
    silent = _silent(rx, _begun_since(ticket, *LET_GO), but=_SAYS_NOTHING)
    return sum(1 for _ in takewhile(_FAILED_STARTS.__contains__, silent))


def empty(rx: Rx, session: str) -> int:
    """Return how many of the session's latest runs, in a row, had no turn though nothing kept the model from one."""
    return len(_silent(rx, _r.session == session, but=_KEPT_FROM_SPEAKING))


def _silent(rx: Rx, which: ColumnElement[bool], *, but: Collection[Outcome]) -> list[Outcome]:
    """Return how the latest runs in a row ended in which the model said nothing, newest first, passing over `but`."""
    query = (
        select(_r.outcome, _r.confirmed)
        .where(which, _r.ended_at_us.is_not(None), or_(_r.confirmed, _r.outcome.not_in(but)))
        .order_by(_r.number.desc())
    )
    ended = rx.connection.execute(query).all()
    return [Outcome(run.outcome) for run in takewhile(lambda run: not run.confirmed, ended)]


def leave(tx: Tx, ticket: str, fingerprint: str | None) -> list[str | None]:
    """Save what the ticket's latest run left behind; return what its runs left, the latest last.

    Of those in which the model spoke, since a person last let the ticket go on.
    """
    last = select(func.max(_r.number)).where(_r.ticket == ticket).scalar_subquery()
    saved = update(schema.run).where(_r.ticket == ticket, _r.number == last).values(fingerprint=fingerprint)
    tx.connection.execute(saved)
    query = select(_r.fingerprint).where(_begun_since(ticket, *LET_GO), _r.confirmed).order_by(_r.number)
    return list(tx.connection.execute(query).scalars())


def fix_rounds(rx: Rx, ticket: str) -> int:
    """Return how often a failed check was sent back to the agent since a person last let it work again."""
    sent_back = select(func.count()).where(_begun_since(ticket, Name.TICKET_RETRIED), _r.kind == Kind.FIX)
    return int(rx.connection.execute(sent_back).scalar_one())


def spent(rx: Rx, ticket: str) -> int:
    """Return what all of a ticket's runs cost, in micro-dollars."""
    return int(rx.connection.execute(select(_sum(_r.cost_microusd)).where(_r.ticket == ticket)).scalar_one())


@dataclass(frozen=True, slots=True)
class Used:
    """What all of a ticket's runs used together."""

    cost_microusd: int = 0
    turns: int = 0
    tokens: int = 0
    active_us: int = 0


def used(rx: Rx, ticket: str) -> Used:
    """Return what all of a ticket's ended runs used.

    A run that its daemon did not see end was active until it was last heard of: nobody knows when it ended.
    """
    measured = log.active_us(rx, ticket)
    heard = select(func.max(_e.at_us)).where(_e.run == _r.id, _e.ticket == ticket, _e.name != Name.RUN_ENDED)
    end = case((_r.outcome == Outcome.ORPHANED, heard.scalar_subquery()), else_=_r.ended_at_us)
    active = func.coalesce(end, _r.started_at_us) - _r.started_at_us
    sums = select(
        _sum(_r.cost_microusd),
        _sum(_r.turns),
        _sum(_r.input_tokens + _r.output_tokens),
        _sum(case((_r.id.in_([*measured]), 0), (active > 0, active), else_=0)),  # a clock can be put back
    ).where(_r.ticket == ticket)
    cost, turns, tokens, active_us = (int(amount) for amount in rx.connection.execute(sums).one())
    return Used(cost, turns, tokens, active_us + sum(measured.values()))


def day_money(rx: Rx, day_start_us: int) -> tuple[int, int]:
    """Return what the runs that began since `day_start_us` cost, and what those of them that go on may cost at most."""
    return _money(rx, _r.started_at_us >= day_start_us)


def queue_money(rx: Rx) -> tuple[int, int]:
    """Return what all runs ever cost, and what those that go on may cost at most."""
    return _money(rx, true())


def _money(rx: Rx, which: ColumnElement[bool]) -> tuple[int, int]:
    cost = select(_sum(_r.cost_microusd)).where(which)
    most = select(_sum(_r.allowance_microusd + RESERVE_MICROUSD)).where(which, _r.ended_at_us.is_(None))
    return int(rx.connection.execute(cost).scalar_one()), int(rx.connection.execute(most).scalar_one())


def _begun_since(ticket: str, *names: Name) -> ColumnElement[bool]:
    """Return what is true of a ticket's runs that began after its last event of `names`, by the log: clocks jump."""
    last = select(func.coalesce(func.max(_e.seq), 0)).where(_e.ticket == ticket, _e.name.in_(names))
    begun = select(_e.run).where(_e.ticket == ticket, _e.name == Name.RUN_STARTED, _e.seq > last.scalar_subquery())
    return _r.id.in_(begun)


def _sum(column: ColumnElement[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(column), 0)


def _row(found: RowMapping) -> RunRow:
    values = dict(found)
    microusd, kind, cut = values.pop("cost_microusd"), values.pop("cost_kind"), values.pop("cut")
    cost = None if kind is None else Cost(microusd, CostKind(kind), cut)
    outcome = values.pop("outcome")
    values["kind"] = Kind(values["kind"])
    return RunRow(**values, cost=cost, outcome=None if outcome is None else Outcome(outcome))
