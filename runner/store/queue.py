"""The queue as a whole: whether it waits, and the starts of the daemons that work on it."""

from collections.abc import Collection
from dataclasses import asdict

from sqlalchemy import delete, select, update

from runner.admission import WEATHER, Pause, after_weather, title
from runner.events import Name
from runner.outcome import WAITS, Waits
from runner.store import schema
from runner.store.connection import Rx, Tx
from runner.store.errors import UnknownRow
from tickets.source import Refused
from tickets.ticket import State

_q = schema.queue.c
_t = schema.ticket.c
_OPEN = dict.fromkeys(("reason", "note", "until_us", "paused_by", "paused_at_us", "probe")) | {"waits": 0}


def begin_epoch(tx: Tx, host: str, home: str, pid: int) -> int:
    """Save the start of a daemon and return the number by which it owns what it claims."""
    values = {"host": host, "home": home, "pid": pid, "started_at_us": tx.now_us}
    insert = schema.epoch.insert().values(values).returning(schema.epoch.c.id)
    epoch = int(tx.connection.execute(insert).scalar_one())
    tx.log("", Name.DAEMON_STARTED, epoch=epoch, host=host, home=home, pid=pid)
    return epoch


def end_epoch(tx: Tx, epoch: int) -> None:
    """Save that a daemon stopped as it should.

    Raises:
        UnknownRow: There is no such epoch.
    """
    stop = update(schema.epoch).where(schema.epoch.c.id == epoch).values(stopped_at_us=tx.now_us)
    if tx.connection.execute(stop.returning(schema.epoch.c.id)).one_or_none() is None:
        raise UnknownRow("epoch", epoch)
    tx.log("", Name.DAEMON_STOPPED, epoch=epoch)


def pause(tx: Tx, *, reason: str, note: str, by: str) -> bool:
    """Let no ticket be claimed until a person resumes the queue; False when it waits for that already.

    Args:
        tx: The transaction.
        reason: A word, for the log.
        note: For a person; its first line is logged.
        by: Who.
    """
    now = paused(tx)
    if now is not None and now.until_us is None:
        return False
    _pause(tx, reason=reason, note=note, until_us=None, by=by)
    return True


def wait_for_weather(
    tx: Tx, *, note: str, reset_at_us: int | None, by: str, chance: float, waits: Waits = WAITS
) -> bool:
    """Pause the queue now that a run ended in weather; False when that says nothing new.

    Args:
        tx: The transaction, in which the run's ticket does not run any more.
        note: For a person; its first line is logged.
        reset_at_us: When the limit ends, if the API said so.
        by: The ticket.
        chance: From 0 up to 1, at random.
        waits: How long a pause is.
    """
    after = after_weather(paused(tx), now_us=tx.now_us, reset_at_us=reset_at_us, chance=chance, waits=waits)
    if after is None:
        return False
    number, until_us = after
    _save(tx, {"waits": number, "probe": None})
    _pause(tx, reason=WEATHER, note=note, until_us=until_us, by=by)
    return True


def probe(tx: Tx, ticket: str) -> None:
    """Let a ticket that is being claimed try whether the weather is over."""
    _save(tx, {"probe": ticket})
    tx.log("", Name.QUEUE_PROBED, by=ticket)


def leave_probe(tx: Tx, ticket: str) -> None:
    """Let another ticket probe: this one goes on without the model."""
    tx.connection.execute(update(schema.queue).where(_q.probe == ticket).values(probe=None))


def hear(tx: Tx, ticket: str) -> bool:
    """Note that the model spoke to a ticket; True when it was the probe, and the weather is over."""
    now = paused(tx)
    if now is None or now.probe != ticket or now.until_us is None:
        return False
    return resume(tx, by=ticket)


def resume(tx: Tx, *, by: str) -> bool:
    """Let tickets be claimed again; False when they may be already."""
    if paused(tx) is None:
        return False
    _save(tx, _OPEN)
    tx.log("", Name.QUEUE_RESUMED, by=by)
    return True


def paused(rx: Rx) -> Pause | None:
    """Return the pause that is in force, or None; a probe whose claim has ended, or lost its lease, is none."""
    found = rx.connection.execute(select(schema.queue)).mappings().one()
    if found["paused_at_us"] is None:
        return None
    probing = select(_t.id).where(_t.id == found["probe"], _t.state == State.RUNNING, _t.lease_until_us >= rx.now_us)
    return Pause(
        reason=found["reason"],
        note=found["note"],
        by=found["paused_by"],
        since_us=found["paused_at_us"],
        until_us=found["until_us"],
        waits=found["waits"],
        probe=rx.connection.execute(probing).scalar_one_or_none(),
    )


def refuse(tx: Tx, refused: Collection[Refused]) -> None:
    """Save all that the source holds now and cannot become a ticket; each is logged when it is new or has changed."""
    before = {refusal.where: refusal.fingerprint for refusal in refusals(tx)}
    tx.connection.execute(delete(schema.refusal))
    for refusal in refused:
        tx.connection.execute(schema.refusal.insert().values(asdict(refusal) | {"at_us": tx.now_us}))
        if before.get(refusal.where) != refusal.fingerprint:
            tx.log("", Name.FILE_REFUSED, where=refusal.where, problem=refusal.problem)


def refusals(rx: Rx) -> list[Refused]:
    """Return what the source held, when it was last looked at, that cannot become a ticket."""
    columns = schema.refusal.c
    query = select(columns.where, columns.problem, columns.fingerprint).order_by(columns.where)
    return [Refused(*found) for found in rx.connection.execute(query)]


def _pause(tx: Tx, *, reason: str, note: str, until_us: int | None, by: str) -> None:
    _save(tx, {"reason": reason, "note": note, "until_us": until_us, "paused_by": by, "paused_at_us": tx.now_us})
    tx.log("", Name.QUEUE_PAUSED, reason=reason, note=title(note), until_us=until_us, by=by)


def _save(tx: Tx, values: dict[str, str | int | None]) -> None:
    tx.connection.execute(update(schema.queue).where(_q.id == 1).values(values))
