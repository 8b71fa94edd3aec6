"""What is asked of the tables only to see whether they agree: numbers of events, pauses, starts of daemons.

And the two changes that a restored copy needs. Does not know what should be true.
"""

from dataclasses import dataclass

from sqlalchemy import func, select, update

from runner.events import Event, Name
from runner.store import effects, log, schema
from runner.store.connection import Rx, Tx

_e = schema.event.c
_p = schema.epoch.c


@dataclass(frozen=True, slots=True)
class Numbers:
    """How the events of a ticket, or of "", are numbered."""

    ticket: str
    stored: int | None
    """Of the latest event, as the ticket's or the queue's row has it; None without a row."""
    first: int
    last: int
    count: int

    @property
    def agree(self) -> bool:
        """There is no gap, and the row names the latest."""
        return (self.first, self.last, self.stored) == (1, self.count, self.count)


@dataclass(frozen=True, slots=True)
class EpochRow:
    """A start of a daemon."""

    id: int
    host: str
    home: str
    pid: int
    started_at_us: int
    stopped_at_us: int | None


@dataclass(frozen=True, slots=True)
class Paused:
    """What a row, or the log, says of the queue's latest pause."""

    reason: str | None
    until_us: int | None
    by: str | None


def numbers(rx: Rx) -> list[Numbers]:
    """Return how events are numbered, of every ticket that has a row or events, and of ""."""
    logged = select(_e.ticket, func.min(_e.seq), func.max(_e.seq), func.count()).group_by(_e.ticket)
    stored = {"": int(rx.connection.execute(select(schema.queue.c.seq)).scalar_one())}
    stored |= {found.id: found.seq for found in rx.connection.execute(select(schema.ticket.c.id, schema.ticket.c.seq))}
    of_log = {ticket: (first, last, count) for ticket, first, last, count in rx.connection.execute(logged)}
    return [
        Numbers(ticket, stored.get(ticket), *of_log.get(ticket, (1, 0, 0))) for ticket in sorted({*stored, *of_log})
    ]


def epochs(rx: Rx) -> list[EpochRow]:
    """Return every start of a daemon, the first one first."""
    return [EpochRow(**found) for found in rx.connection.execute(select(schema.epoch).order_by(_p.id)).mappings()]


def paused(rx: Rx) -> tuple[Paused | None, Paused | None]:
    """Return the pause that is stored, whether or not its time is over, and the one that the log tells of."""
    row = rx.connection.execute(select(schema.queue)).mappings().one()
    stored = None if row["paused_at_us"] is None else Paused(row["reason"], row["until_us"], row["paused_by"])
    query = select(_e.id).where(_e.ticket == "", _e.name.in_([Name.QUEUE_PAUSED, Name.QUEUE_RESUMED]))
    last = rx.connection.execute(query.order_by(_e.seq.desc()).limit(1)).scalar_one_or_none()
    if last is None:
        return stored, None
    return stored, _pause_of(log.events(rx, since=int(last) - 1, limit=1)[0].event)


def has_home(rx: Rx, home: str) -> bool:
    """Return whether a daemon of that home has worked on this database."""
    return rx.connection.execute(select(_p.id).where(_p.home == home).limit(1)).one_or_none() is not None


def rehome(tx: Tx, old: str, new: str) -> None:
    """Let what belonged to the home `old` belong to `new`."""
    for table in (schema.ticket, schema.epoch):
        tx.connection.execute(update(table).where(table.c.home == old).values(home=new))


def presume_begun(tx: Tx, home: str) -> int:
    """Say of all that is wanted that it may have been done: a daemon looks it up before it does it; return how many."""
    last = tx.connection.execute(select(func.max(_p.id)).where(_p.home == home)).scalar_one_or_none()
    wanted = [] if last is None else effects.due(tx, home=home)
    for row in wanted:
        effects.claim(tx, row.key, epoch=int(last or 0))
    return len(wanted)


def _pause_of(event: Event) -> Paused | None:
    if event.name is Name.QUEUE_RESUMED:
        return None
    until_us = event.payload.get("until_us")
    return Paused(
        str(event.payload.get("reason")),
        until_us if isinstance(until_us, int) else None,
        str(event.payload.get("by")),
    )
