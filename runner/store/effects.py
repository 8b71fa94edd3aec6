"""The ledger of effects: one row per key, wanted, claimed by exactly one, settled once.

The claim is written before anything is sent and the outcome after it, so a row that is
claimed and has no outcome says: this may have happened. Every change after the claim is
a compare-and-set on it.

Does not know what an effect does or how it is looked up, nor what people say of it.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import ColumnElement, RowMapping, and_, func, or_, select, update

from runner.errors import RunnerError
from runner.events import Name, Value
from runner.store import schema, tickets
from runner.store.connection import Rx, Tx
from runner.store.text import to_json, to_payload
from tickets.ticket import OF_EFFECTS, Settled, State

_f = schema.effect.c


class EffectState(StrEnum):
    """Where an effect is."""

    WANTED = "wanted"
    CLAIMED = "claimed"
    """May have happened: the outcome is not known yet."""
    DONE = "done"
    FAILED = "failed"
    """Provably did not happen."""
    ABANDONED = "abandoned"
    """A person decided to go on without it."""


OPEN = frozenset({EffectState.WANTED, EffectState.CLAIMED})

MAX_TRIES = 5
"""Of one effect that fails, however often it is asked for."""

REPORT, NOTIFY = "report", "notify"
OURS = frozenset({REPORT, NOTIFY})
"""Kinds of what we say ourselves at the end of a claim: no agent asks for it, and no ticket waits for it."""


@dataclass(frozen=True, slots=True)
class EffectRow:
    """An effect as stored."""

    key: str
    ticket: str
    round: int
    operation: str
    kind: str
    payload: Mapping[str, Value]
    state: EffectState
    needs_approval: bool
    approved_by: str | None
    outcome: str | None
    """What became of it; of a claimed one, why that is not known."""
    run: str | None
    claimed_by: int | None
    """The epoch whose daemon performs it."""
    claimed_at_us: int | None
    attempts: int
    created_at_us: int

    @property
    def waits_for_approval(self) -> bool:
        """A person has to say yes before it is performed."""
        return self.state is EffectState.WANTED and self.needs_approval and self.approved_by is None

    @property
    def is_unknown(self) -> bool:
        """It was tried, and whether it happened could not be found out."""
        return self.state is EffectState.CLAIMED and self.outcome is not None

    @property
    def word(self) -> str:
        """Its state; what waits for a person has a word of its own."""
        return "unknown" if self.is_unknown else "approval" if self.waits_for_approval else str(self.state)

    @property
    def is_given_up(self) -> bool:
        """It failed as often as it is tried."""
        return self.state is EffectState.FAILED and self.attempts >= MAX_TRIES


class Verdict(StrEnum):
    """What the ledger says to a wish."""

    NEW = "new"
    SAME = "same"
    """The key is there with the same content."""
    TWIN = "twin"
    """The same kind and content is there in the round, under another operation."""
    CONFLICT = "conflict"
    """The key is there with other content."""


@dataclass(frozen=True, slots=True)
class Wish:
    """An effect that somebody wants."""

    key: str
    ticket: str
    round: int
    operation: str
    kind: str
    payload: Mapping[str, Value]
    needs_approval: bool = False
    run: str | None = None


class TooManyEffects(RunnerError):
    """A ticket wants more effects than it may have."""

    def __init__(self, ticket: str, limit: int) -> None:
        super().__init__(ticket, limit)
        self.ticket, self.limit = ticket, limit

    def __str__(self) -> str:
        return f"ticket {self.ticket} has its {self.limit} effects already: a person may raise limits.effects"


class UnknownEffect(RunnerError):
    """There is no effect with this key."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key

    def __str__(self) -> str:
        return f"there is no effect {self.key!r}: `ticket-runner effects` lists them"


def content_hash(kind: str, payload: Mapping[str, Value]) -> str:
    """Return what two effects of one kind with one content share."""
    return hashlib.sha256(f"{kind}\0{to_json(dict(sorted(payload.items())))}".encode()).hexdigest()


def want(tx: Tx, wish: Wish, *, limit: int | None) -> tuple[EffectRow, Verdict]:
    """Save a wish once; return the row that stands for it and what it is to the wish.

    One that failed, and so did not happen, is wanted again, a few times; an approval was of the earlier try. A `limit`
    of None is for our own reports.

    Raises:
        TooManyEffects: The ticket has `limit` of them.
    """
    digest = content_hash(wish.kind, wish.payload)
    there = _find(tx, _f.key == wish.key)
    if there is not None:
        return _repeated(tx, wish, there[0], Verdict.SAME if there[1] == digest else Verdict.CONFLICT)
    twin = _find(tx, and_(_f.ticket == wish.ticket, _f.round == wish.round, _f.payload_hash == digest))
    if twin is not None and limit is not None:
        return _repeated(tx, wish, twin[0], Verdict.TWIN)
    count = select(func.count()).where(_f.ticket == wish.ticket, _f.kind.not_in(OURS))
    if limit is not None and int(tx.connection.execute(count).scalar_one()) >= limit:
        raise TooManyEffects(wish.ticket, limit)
    values = {
        "key": wish.key,
        "ticket": wish.ticket,
        "round": wish.round,
        "operation": wish.operation,
        "kind": wish.kind,
        "payload": to_json(dict(wish.payload)),
        "payload_hash": digest,
        "state": EffectState.WANTED,
        "needs_approval": wish.needs_approval,
        "run": wish.run,
        "attempts": 0,
        "created_at_us": tx.now_us,
        "changed_at_us": tx.now_us,
    }
    tx.connection.execute(schema.effect.insert().values(values))
    tx.log(wish.ticket, Name.EFFECT_WANTED, run=wish.run, key=wish.key, kind=wish.kind, approval=wish.needs_approval)
    return get(tx, wish.key), Verdict.NEW


def _repeated(tx: Tx, wish: Wish, row: EffectRow, verdict: Verdict) -> tuple[EffectRow, Verdict]:
    """Answer with what is there; what provably did not happen may be tried again."""
    tx.log(wish.ticket, Name.EFFECT_REPEATED, run=wish.run, key=row.key, verdict=str(verdict))
    if verdict is Verdict.CONFLICT or row.state is not EffectState.FAILED or row.is_given_up:
        return row, verdict
    values = {"state": EffectState.WANTED, "outcome": None, "approved_by": None, "changed_at_us": tx.now_us}
    tx.connection.execute(update(schema.effect).where(_f.key == row.key).values(values))
    tx.log(wish.ticket, Name.EFFECT_WANTED, run=wish.run, key=row.key, kind=row.kind, approval=row.needs_approval)
    return get(tx, row.key), Verdict.NEW


def claim(tx: Tx, key: str, *, epoch: int) -> EffectRow | None:
    """Take a wanted effect to perform it; None when it is not there to be taken."""
    allowed = or_(_f.needs_approval.is_(False), _f.approved_by.is_not(None))
    return _claim(tx, key, and_(_f.state == EffectState.WANTED, allowed), epoch=epoch)


def reclaim(tx: Tx, row: EffectRow, *, epoch: int) -> EffectRow | None:
    """Take over a claimed effect that provably did not happen; None when it was settled meanwhile."""
    return _claim(tx, row.key, _as_claimed(row), epoch=epoch)


def settle(tx: Tx, row: EffectRow, state: EffectState, outcome: str) -> bool:
    """Save what became of a claimed effect; False when somebody has settled or claimed it since.

    A ticket that was held for its effects is ready again when none of them is open.
    """
    values = {"state": state, "outcome": outcome, "changed_at_us": tx.now_us}
    settled = update(schema.effect).where(_f.key == row.key, _as_claimed(row)).values(values).returning(_f.key)
    if tx.connection.execute(settled).one_or_none() is None:
        return False
    name = Name.EFFECT_DONE if state is EffectState.DONE else Name.EFFECT_FAILED
    tx.log(row.ticket, name, run=row.run, key=row.key)
    let_go(tx, row.ticket)
    return True


def let_go(tx: Tx, ticket: str) -> None:
    """Make a ticket ready that was held for its effects, when nothing is open any more."""
    held = tickets.get(tx, ticket).ticket
    if held.state is not State.HELD or held.reason not in OF_EFFECTS:
        return
    if not open_effects(tx, ticket):
        tickets.apply(tx, ticket, Settled())


def leave_unknown(tx: Tx, row: EffectRow, why: str) -> bool:
    """Save why it could not be found out whether a claimed effect happened; False when it was settled meanwhile."""
    values = {"outcome": why, "changed_at_us": tx.now_us}
    saved = update(schema.effect).where(_f.key == row.key, _as_claimed(row)).values(values).returning(_f.key)
    if tx.connection.execute(saved).one_or_none() is None:
        return False
    tx.log(row.ticket, Name.EFFECT_UNKNOWN, run=row.run, key=row.key)
    return True


def get(rx: Rx, key: str) -> EffectRow:
    """Return one effect.

    Raises:
        UnknownEffect: There is none.
    """
    found = _find(rx, _f.key == key)
    if found is None:
        raise UnknownEffect(key)
    return found[0]


def effects(rx: Rx, *, ticket: str | None = None, states: Collection[EffectState] | None = None) -> list[EffectRow]:
    """Return effects, those of unknown outcome first, then the open ones, then by age."""
    query = select(schema.effect)
    if ticket is not None:
        query = query.where(_f.ticket == ticket)
    if states is not None:
        query = query.where(_f.state.in_([*states]))
    rows = [_row(found) for found in rx.connection.execute(query.order_by(_f.created_at_us, _f.key)).mappings()]
    return sorted(rows, key=lambda row: (not row.is_unknown, row.state not in OPEN))


def open_effects(rx: Rx, ticket: str) -> list[EffectRow]:
    """Return what a ticket waits for: what its agent asked for and nobody knows the outcome of."""
    return [row for row in effects(rx, ticket=ticket, states=OPEN) if row.kind not in OURS]


def due(rx: Rx, *, home: str) -> list[EffectRow]:
    """Return what can be performed now: wanted, and approved where that is needed; of this home's tickets."""
    allowed = or_(_f.needs_approval.is_(False), _f.approved_by.is_not(None))
    query = (
        select(schema.effect)
        .join(schema.ticket, schema.ticket.c.id == _f.ticket)
        .where(_f.state == EffectState.WANTED, allowed)
        .where(or_(schema.ticket.c.home.is_(None), schema.ticket.c.home == home))
        .order_by(_f.created_at_us, _f.key)
    )
    return [_row(found) for found in rx.connection.execute(query).mappings()]


def abandoned_claims(rx: Rx, *, home: str, epoch: int) -> list[EffectRow]:
    """Return the claimed effects without outcome whose daemon, an earlier one of this home, is dead."""
    of_home = select(schema.epoch.c.id).where(schema.epoch.c.home == home, schema.epoch.c.id != epoch)
    query = select(schema.effect).where(
        _f.state == EffectState.CLAIMED, _f.outcome.is_(None), _f.claimed_by.in_(of_home)
    )
    return [_row(found) for found in rx.connection.execute(query).mappings()]


def _claim(tx: Tx, key: str, condition: ColumnElement[bool], *, epoch: int) -> EffectRow | None:
    values = {
        "state": EffectState.CLAIMED,
        "claimed_by": epoch,
        "claimed_at_us": tx.now_us,
        "outcome": None,
        "attempts": _f.attempts + 1,
        "changed_at_us": tx.now_us,
    }
    claimed = update(schema.effect).where(_f.key == key, condition).values(values).returning(_f.key)
    if tx.connection.execute(claimed).one_or_none() is None:
        return None
    row = get(tx, key)
    tx.log(row.ticket, Name.EFFECT_CLAIMED, run=row.run, key=key, attempt=row.attempts)
    return row


def _as_claimed(row: EffectRow) -> ColumnElement[bool]:
    """The very claim that `row` shows: nobody has settled it or claimed it again."""
    return and_(_f.state == EffectState.CLAIMED, _f.attempts == row.attempts)


def _find(rx: Rx, condition: ColumnElement[bool]) -> tuple[EffectRow, str] | None:
    query = select(schema.effect).where(condition).order_by(_f.created_at_us).limit(1)
    found = rx.connection.execute(query).mappings().one_or_none()
    return None if found is None else (_row(found), found["payload_hash"])


def _row(found: RowMapping) -> EffectRow:
    return EffectRow(
        key=found["key"],
        ticket=found["ticket"],
        round=found["round"],
        operation=found["operation"],
        kind=found["kind"],
        payload=to_payload(found["payload"]),
        state=EffectState(found["state"]),
        needs_approval=found["needs_approval"],
        approved_by=found["approved_by"],
        outcome=found["outcome"],
        run=found["run"],
        claimed_by=found["claimed_by"],
        claimed_at_us=found["claimed_at_us"],
        attempts=found["attempts"],
        created_at_us=found["created_at_us"],
    )
