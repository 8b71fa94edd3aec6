"""Tickets: taken in, claimed, moved by their facts, found again.

A ticket's state changes in `apply` and nowhere else, together with the event of the
fact that changed it, so that the row is always what its log folds into. What a claim
writes beside its facts passes `require_claim`, the fence.

Does not know runs, money or effects.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from difflib import get_close_matches

from sqlalchemy import ColumnElement, RowMapping, and_, func, or_, select, update

from runner.admission import closed_by_pause
from runner.events import Name, fact_name, fact_payload, progressed
from runner.store import log, queue, schema
from runner.store.connection import Rx, Tx
from runner.store.errors import LostTicket, UnknownTicket
from runner.store.text import to_json, to_words
from tickets.moves import advance
from tickets.source import Known
from tickets.ticket import (
    Cause,
    Claimed,
    Expects,
    Fact,
    Orphaned,
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
_TURN = (_t.priority.desc(), _t.taken_at_us, _t.id)
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


def all_rows(rx: Rx, *, states: Collection[State] | None = None, since_us: int | None = None) -> list[Row]:
    """Return the tickets in one of `states`, or that changed at `since_us` or later, oldest first."""
    query = select(schema.ticket).order_by(_t.taken_at_us, _t.id)
    if states is not None:
        query = query.where(_t.state.in_([*states]))
    if since_us is not None:
        query = query.where(_t.changed_at_us >= since_us)
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


def claim_next(tx: Tx, *, epoch: int, home: str, lease_s: float) -> Row | None:
    """Claim the ticket whose turn it is; None when nothing is due or the queue is paused.

    The highest priority first, then the oldest. A ticket with a worktree in another home is not claimed. When the time
    of a pause for the weather has come one ticket is, as the probe: not that whose runs ended in weather most often,
    since it may be the only one to meet it.

    Args:
        tx: The transaction.
        epoch: Who claims.
        home: Names a state directory among those of all hosts.
        lease_s: How long the claim holds unless it is renewed.
    """
    pause = queue.paused(tx)
    if closed_by_pause(pause, now_us=tx.now_us) is not None:
        return None
    first = () if pause is None else (_t.waits,)
    claimable = select(_t.id, _t.token).where(_claimable(home), _t.not_before_us <= tx.now_us)
    due = claimable.order_by(*first, *_TURN).limit(1)
    found = tx.connection.execute(due).one_or_none()
    if found is None:
        return None
    if pause is not None:
        queue.probe(tx, found.id)
    apply(tx, found.id, Claimed(found.token + 1))
    values = {"owner": epoch, "lease_until_us": _lease(tx, lease_s)}
    tx.connection.execute(update(schema.ticket).where(_t.id == found.id).values(values))
    return get(tx, found.id)


def line(rx: Rx, home: str) -> list[str]:
    """Return the tickets that are due in this home, the next one first."""
    query = select(_t.id).where(_claimable(home), _t.not_before_us <= rx.now_us).order_by(*_TURN)
    return [*rx.connection.execute(query).scalars()]


def running(rx: Rx, home: str) -> int:
    """Return how many tickets the daemons of a home have claimed."""
    of_home = select(schema.epoch.c.id).where(schema.epoch.c.home == home)
    query = select(func.count()).where(_t.state == State.RUNNING, _t.owner.in_(of_home))
    return int(rx.connection.execute(query).scalar_one())


def renew(tx: Tx, ticket_id: str, token: int, lease_s: float) -> Ticket | None:
    """Let a claim hold for `lease_s` from now and return its ticket; None when it has lost it."""
    renewal = update(schema.ticket).where(_held_by(ticket_id, token)).values(lease_until_us=_lease(tx, lease_s))
    renewed = tx.connection.execute(renewal.returning(_t.id)).one_or_none()
    return None if renewed is None else get(tx, ticket_id).ticket


def is_claimed(rx: Rx, ticket_id: str, token: int) -> bool:
    """Return whether `token` is the ticket's present claim."""
    return rx.connection.execute(select(_t.id).where(_held_by(ticket_id, token))).one_or_none() is not None


def require_claim(rx: Rx, ticket_id: str, token: int) -> None:
    """Refuse to go on for a claim that is over.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    if not is_claimed(rx, ticket_id, token):
        raise LostTicket(ticket_id, token)


def set_tree(tx: Tx, ticket_id: str, token: int, *, home: str, branch: str, base_sha: str) -> None:
    """Save where a claim's worktree is and what it was made from.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    require_claim(tx, ticket_id, token)
    values = {"home": home, "branch": branch, "base_sha": base_sha, "changed_at_us": tx.now_us}
    tx.connection.execute(update(schema.ticket).where(_t.id == ticket_id).values(values))


def move_base(tx: Tx, ticket_id: str, token: int, *, base_sha: str, sha: str) -> None:
    """Save what a ticket's work is compared with from now on: a commit of its base that its branch has, at `sha`.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    require_claim(tx, ticket_id, token)
    values = {"base_sha": base_sha, "changed_at_us": tx.now_us}
    tx.connection.execute(update(schema.ticket).where(_t.id == ticket_id).values(values))
    tx.log(ticket_id, Name.BASE_MERGED, base_sha=base_sha, sha=sha)


def set_budget(tx: Tx, ticket_id: str, microusd: int, *, by: str) -> None:
    """Give a ticket another cap, over all its runs, than its source or the configuration gave it.

    Raises:
        UnknownTicket: There is no such ticket.
    """
    values = {"budget_microusd": microusd, "changed_at_us": tx.now_us}
    tx.connection.execute(update(schema.ticket).where(_t.id == ticket_id).values(values))
    tx.log(ticket_id, Name.BUDGET_SET, budget_microusd=microusd, by=by)


def orphans(rx: Rx, *, home: str, epoch: int) -> list[Row]:
    """Return the running tickets whose daemon is dead, oldest first.

    Of this home those of every epoch but `epoch`, which holds the home's lock; of
    other homes those whose lease has ended.
    """
    of_this_home = select(schema.epoch.c.id).where(schema.epoch.c.home == home)
    dead = or_(_t.owner.in_(of_this_home), _t.lease_until_us < rx.now_us)
    query = select(schema.ticket).where(_t.state == State.RUNNING, _t.owner != epoch, dead).order_by(_t.taken_at_us)
    return [_row(found) for found in rx.connection.execute(query).mappings()]


def orphan(tx: Tx, ticket_id: str, token: int) -> Ticket:
    """Give up a dead daemon's claim; in the transaction of `orphans`, or it may have been renewed since.

    Raises:
        IllegalMove: `token` is not the ticket's present claim.
    """
    since_claim = log.names_since(tx, ticket_id, Name.TICKET_CLAIMED)
    return apply(tx, ticket_id, Orphaned(token, progressed(since_claim)))


def waiting(rx: Rx, home: str, cause: Cause, *, beyond_us: int) -> list[str]:
    """Return the tickets of this home that wait for a time beyond `beyond_us` because of `cause`."""
    query = select(_t.id, _t.not_before_us).where(_claimable(home), _t.not_before_us > beyond_us)
    found = rx.connection.execute(query.order_by(_t.taken_at_us, _t.id)).all()
    return [
        each.id
        for each in found
        if (last := log.last(rx, each.id, Name.TICKET_PUT_BACK)) is not None
        and last.payload.items() >= {"cause": cause, "not_before_us": each.not_before_us}.items()
    ]


def next_due_us(rx: Rx, home: str) -> int | None:
    """Return when this home can claim next, which may be past; None when something has to happen first."""
    due = rx.connection.execute(select(func.min(_t.not_before_us)).where(_claimable(home))).scalar_one()
    if due is None:
        return None
    closed = closed_by_pause(queue.paused(rx), now_us=rx.now_us)
    if closed is None:
        return int(due)
    return None if closed.until_us is None else max(int(due), closed.until_us)


def _after_others(tx: Tx) -> int:
    """Return the time, or one just after the last ticket's: tickets keep the order in which they were taken in.

    A ticket of a clock that was ahead by more than a second is no measure.
    """
    latest = select(func.max(_t.taken_at_us)).where(_t.taken_at_us < tx.now_us + _US)
    found = tx.connection.execute(latest).scalar_one()
    return tx.now_us if found is None else max(tx.now_us, int(found) + 1)


def _claimable(home: str) -> ColumnElement[bool]:
    return and_(_t.state == State.READY, or_(_t.home.is_(None), _t.home == home))


def _held_by(ticket_id: str, token: int) -> ColumnElement[bool]:
    return and_(_t.id == ticket_id, _t.state == State.RUNNING, _t.token == token)


def _lease(tx: Tx, lease_s: float) -> int:
    return tx.now_us + round(lease_s * _US)


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
