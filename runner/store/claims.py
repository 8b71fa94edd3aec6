"""Claims: whose turn it is, who has a ticket and for how long, and whose daemon is dead.

What a claim writes passes `require`, the fence: its token has to be the ticket's
present one. A claim holds while its lease is renewed or, in its own home, while its
daemon lives.

Does not know what a claim does.
"""

from collections.abc import Mapping

from sqlalchemy import ColumnElement, and_, func, or_, select, update

from runner.admission import closed_by_pause
from runner.events import Name, Value, progressed
from runner.store import log, queue, schema, tickets
from runner.store.connection import Rx, Tx
from runner.store.errors import LostTicket
from runner.store.tickets import Row
from tickets.ticket import Cause, Claimed, Orphaned, State, Ticket

_t = schema.ticket.c
_US = 1_000_000
_TURN = (_t.priority.desc(), _t.taken_at_us, _t.id)


def take_next(tx: Tx, *, epoch: int, home: str, lease_s: float) -> Row | None:
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
    tickets.apply(tx, found.id, Claimed(found.token + 1))
    values = {"owner": epoch, "lease_until_us": _lease(tx, lease_s)}
    tx.connection.execute(update(schema.ticket).where(_t.id == found.id).values(values))
    return tickets.get(tx, found.id)


def line(rx: Rx, home: str) -> list[str]:
    """Return the tickets that are due in this home, the next one first."""
    query = select(_t.id).where(_claimable(home), _t.not_before_us <= rx.now_us).order_by(*_TURN)
    return [*rx.connection.execute(query).scalars()]


def running(rx: Rx, home: str) -> int:
    """Return how many tickets the daemons of a home have claimed."""
    of_home = select(schema.epoch.c.id).where(schema.epoch.c.home == home)
    query = select(func.count()).where(_t.state == State.RUNNING, _t.owner.in_(of_home))
    return int(rx.connection.execute(query).scalar_one())


def next_due_us(rx: Rx, home: str) -> int | None:
    """Return when this home can claim next, which may be past; None when something has to happen first."""
    due = rx.connection.execute(select(func.min(_t.not_before_us)).where(_claimable(home))).scalar_one()
    if due is None:
        return None
    closed = closed_by_pause(queue.paused(rx), now_us=rx.now_us)
    if closed is None:
        return int(due)
    return None if closed.until_us is None else max(int(due), closed.until_us)


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


def misdated(rx: Rx, home: str) -> list[str]:
    """Return the tickets of this home whose wait began at a time that is yet to come: the clock was put back since.

    A time that a ticket itself asks for stands, whatever the clock does.
    """
    ahead = _t.changed_at_us > rx.now_us, _t.not_before_us > rx.now_us, _t.not_before_us != _t.asked_not_before_us
    query = select(_t.id).where(_claimable(home), *ahead).order_by(_t.taken_at_us, _t.id)
    return [*rx.connection.execute(query).scalars()]


def renew(tx: Tx, ticket_id: str, token: int, lease_s: float) -> Ticket | None:
    """Let a claim hold for `lease_s` from now and return its ticket; None when it has lost it."""
    renewal = update(schema.ticket).where(_held_by(ticket_id, token)).values(lease_until_us=_lease(tx, lease_s))
    renewed = tx.connection.execute(renewal.returning(_t.id)).one_or_none()
    return None if renewed is None else tickets.get(tx, ticket_id).ticket


def is_claimed(rx: Rx, ticket_id: str, token: int) -> bool:
    """Return whether `token` is the ticket's present claim."""
    return rx.connection.execute(select(_t.id).where(_held_by(ticket_id, token))).one_or_none() is not None


def require(rx: Rx, ticket_id: str, token: int) -> None:
    """Refuse to go on for a claim that is over.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    if not is_claimed(rx, ticket_id, token):
        raise LostTicket(ticket_id, token)


def log_event(
    tx: Tx, ticket_id: str, token: int, name: Name, payload: Mapping[str, Value], *, run: str | None = None
) -> None:
    """Log an event of a claim.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    require(tx, ticket_id, token)
    tx.log(ticket_id, name, payload, run=run)


def set_tree(tx: Tx, ticket_id: str, token: int, *, home: str, branch: str, base_sha: str) -> None:
    """Save where a claim's worktree is and what it was made from.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    require(tx, ticket_id, token)
    values = {"home": home, "branch": branch, "base_sha": base_sha, "changed_at_us": tx.now_us}
    tx.connection.execute(update(schema.ticket).where(_t.id == ticket_id).values(values))


def move_base(tx: Tx, ticket_id: str, token: int, *, base_sha: str, sha: str) -> None:
    """Save what a ticket's work is compared with from now on: a commit of its base that its branch has, at `sha`.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    require(tx, ticket_id, token)
    values = {"base_sha": base_sha, "changed_at_us": tx.now_us}
    tx.connection.execute(update(schema.ticket).where(_t.id == ticket_id).values(values))
    tx.log(ticket_id, Name.BASE_MERGED, base_sha=base_sha, sha=sha)


def orphans(rx: Rx, *, home: str, epoch: int) -> list[Row]:
    """Return the running tickets whose daemon is dead, oldest first.

    Of this home those of every epoch but `epoch`, which holds the home's lock; of
    other homes those whose lease has ended.
    """
    of_this_home = select(schema.epoch.c.id).where(schema.epoch.c.home == home)
    dead = or_(_t.owner.in_(of_this_home), _t.lease_until_us < rx.now_us)
    query = select(schema.ticket).where(_t.state == State.RUNNING, _t.owner != epoch, dead).order_by(_t.taken_at_us)
    return tickets.rows(rx, query)


def orphan(tx: Tx, ticket_id: str, token: int) -> Ticket:
    """Give up a dead daemon's claim; in the transaction of `orphans`, or it may have been renewed since.

    Raises:
        IllegalMove: `token` is not the ticket's present claim.
    """
    since_claim = log.names_since(tx, ticket_id, Name.TICKET_CLAIMED)
    return tickets.apply(tx, ticket_id, Orphaned(token, progressed(since_claim)))


def _claimable(home: str) -> ColumnElement[bool]:
    return and_(_t.state == State.READY, or_(_t.home.is_(None), _t.home == home))


def _held_by(ticket_id: str, token: int) -> ColumnElement[bool]:
    return and_(_t.id == ticket_id, _t.state == State.RUNNING, _t.token == token)


def _lease(tx: Tx, lease_s: float) -> int:
    return tx.now_us + round(lease_s * _US)
