"""Tickets: taken in, moved by their facts, found again.

A ticket's state changes in `apply` and nowhere else, together with the event of the
fact that changed it, so that the row is always what its log folds into.

Does not know whose turn it is, nor runs, money or effects.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from difflib import get_close_matches

from sqlalchemy import Executable, RowMapping, func, select, update

from runner.events import Name, fact_name, fact_payload
from runner.store import schema
from runner.store.connection import Rx, Tx
from runner.store.errors import UnknownTicket
from runner.store.text import to_json, to_words
from tickets.moves import advance
from tickets.source import Known
from tickets.ticket import (
    Expects,
    Fact,
    Reason,
    Spec,
    State,
    Stop,
    Taken,
    Ticket,
    canonical_id,
)

_t = schema.ticket.c
_US = 1_000_000
_NAMED = 1000  # ids in one query, which takes 32,766 values at most; for more than these all are read


@dataclass(frozen=True, slots=True)
class Row:
    """A ticket as stored: what its facts decide, what its source wrote, who has it and where its tree is."""

    ticket: Ticket
    spec: Spec
    source: str
    owner: int | None
    """The epoch that claimed it, while it runs."""
    lease_until_us: int | None
    home: str | None
    """The home that has its worktree; no other may claim it."""
    branch: str | None
    base_sha: str | None
    taken_at_us: int
    changed_at_us: int

    def is_of(self, home: str) -> bool:
        """Whether a daemon of `home` may work on it: no other home has its worktree."""
        return self.home in {None, home}


def take_in(tx: Tx, source: str, spec: Spec) -> Row | None:
    """Save a new ticket; None when its canonical id is known already."""
    if known(tx, spec.id) is not None:
        return None
    values = asdict(Ticket(spec.id)) | {
        "canonical": canonical_id(spec.id),
        "source": source,
        "text": spec.text,
        "title": spec.title,
        "priority": spec.priority,
        "budget_microusd": spec.budget_microusd,
        "base": spec.base,
        "model": spec.model,
        "tools": to_json(spec.tools),
        "verify": to_json(spec.verify),
        "expects": spec.expects,
        "asked_not_before_us": spec.not_before_us,
        "taken_at_us": _after_others(tx),
        "changed_at_us": tx.now_us,
        "seq": 0,
    }
    tx.connection.execute(schema.ticket.insert().values(values))
    apply(tx, spec.id, Taken(spec.not_before_us))
    return get(tx, spec.id)


def known(rx: Rx, ticket_id: str) -> Known | None:
    """Return the ticket with the same canonical id, or None."""
    query = select(schema.ticket).where(_t.canonical == canonical_id(ticket_id))
    found = rx.connection.execute(query).mappings().one_or_none()
    if found is None:
        return None
    row = _row(found)
    return Known(row.spec, row.ticket.state)


def get(rx: Rx, ticket_id: str) -> Row:
    """Return one ticket.

    Raises:
        UnknownTicket: There is none; ids that are close are named.
    """
    found = rx.connection.execute(select(schema.ticket).where(_t.id == ticket_id)).mappings().one_or_none()
    if found is None:
        ids = rx.connection.execute(select(_t.id)).scalars().all()
        raise UnknownTicket(ticket_id, tuple(get_close_matches(ticket_id, ids)))
    return _row(found)


def all_rows(rx: Rx, *, states: Collection[State] | None = None) -> list[Row]:
    """Return the tickets in one of `states`, or all of them, oldest first."""
    query = select(schema.ticket).order_by(_t.taken_at_us, _t.id)
    if states is not None:
        query = query.where(_t.state.in_([*states]))
    return rows(rx, query)


def rows(rx: Rx, query: Executable) -> list[Row]:
    """Return the tickets that a query of their whole table finds."""
    return [_row(found) for found in rx.connection.execute(query).mappings()]


def states(rx: Rx, ids: Collection[str] | None = None) -> dict[str, State]:
    """Return the states of the tickets `ids`, or of all."""
    query = select(_t.id, _t.state)
    if ids is not None and len(ids) <= _NAMED:
        query = query.where(_t.id.in_(ids))
    wanted = None if ids is None else frozenset(ids)
    found = rx.connection.execute(query)
    return {each.id: State(each.state) for each in found if wanted is None or each.id in wanted}


def apply(tx: Tx, ticket_id: str, fact: Fact) -> Ticket:
    """Save a ticket as `fact` leaves it, and the fact; a ticket that stops running has no owner.

    Raises:
        UnknownTicket: There is none.
        IllegalMove: Its state, or its fence, does not allow the fact.
    """
    after = advance(get(tx, ticket_id).ticket, fact)
    values = asdict(after) | {"changed_at_us": tx.now_us}
    if after.state is not State.RUNNING:
        values |= {"owner": None, "lease_until_us": None}
    tx.connection.execute(update(schema.ticket).where(_t.id == ticket_id).values(values))
    tx.log(ticket_id, fact_name(fact), fact_payload(fact))
    return after


def set_budget(tx: Tx, ticket_id: str, microusd: int, *, by: str) -> None:
    """Give a ticket another cap, over all its runs, than its source or the configuration gave it.

    Raises:
        UnknownTicket: There is no such ticket.
    """
    values = {"budget_microusd": microusd, "changed_at_us": tx.now_us}
    tx.connection.execute(update(schema.ticket).where(_t.id == ticket_id).values(values))
    tx.log(ticket_id, Name.BUDGET_SET, budget_microusd=microusd, by=by)


def _after_others(tx: Tx) -> int:
    """Return the time, or one just after the last ticket's: tickets keep the order in which they were taken in.

    A ticket of a clock that was ahead by more than a second is no measure.
    """
    latest = select(func.max(_t.taken_at_us)).where(_t.taken_at_us < tx.now_us + _US)
    found = tx.connection.execute(latest).scalar_one()
    return tx.now_us if found is None else max(tx.now_us, int(found) + 1)


def to_ticket(found: RowMapping) -> Ticket:
    """Return the ticket of a row of its table."""
    return Ticket(
        id=found["id"],
        state=State(found["state"]),
        reason=None if found["reason"] is None else Reason(found["reason"]),
        note=found["note"],
        round=found["round"],
        token=found["token"],
        attempts=found["attempts"],
        waits=found["waits"],
        crashes=found["crashes"],
        not_before_us=found["not_before_us"],
        stop=None if found["stop"] is None else Stop(found["stop"]),
        fresh=found["fresh"],
    )


def _row(found: RowMapping) -> Row:
    spec = Spec(
        id=found["id"],
        text=found["text"],
        title=found["title"],
        priority=found["priority"],
        budget_microusd=found["budget_microusd"],
        base=found["base"],
        model=found["model"],
        tools=to_words(found["tools"]),
        verify=to_words(found["verify"]),
        expects=Expects(found["expects"]),
        not_before_us=found["asked_not_before_us"],
    )
    return Row(
        ticket=to_ticket(found),
        spec=spec,
        source=found["source"],
        owner=found["owner"],
        lease_until_us=found["lease_until_us"],
        home=found["home"],
        branch=found["branch"],
        base_sha=found["base_sha"],
        taken_at_us=found["taken_at_us"],
        changed_at_us=found["changed_at_us"],
    )
