"""The queue as a whole: whether it waits, and the starts of the daemons that work on it."""

from collections.abc import Collection
from dataclasses import asdict, dataclass

from sqlalchemy import delete, select, update

from runner.events import Name
from runner.store import schema
from runner.store.connection import Rx, Tx
from runner.store.errors import UnknownRow
from tickets.source import Refused

_q = schema.queue.c
_TITLE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Pause:
    """Why no ticket is claimed."""

    reason: str
    note: str
    """For a person."""
    by: str
    since_us: int
    until_us: int | None
    """When it ends by itself; None when a person ends it."""

    @property
    def title(self) -> str:
        """The note's first line, for a log."""
        return _title(self.note)


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


def pause(tx: Tx, *, reason: str, note: str, until_us: int | None = None, by: str) -> bool:
    """Let no ticket be claimed; False when the queue is paused for at least as long already.

    Args:
        tx: The transaction.
        reason: A word, for the log.
        note: For a person; its first line is logged.
        until_us: When it ends by itself; None when a person ends it.
        by: Who.
    """
    now = paused(tx)
    if now is not None and (now.until_us is None or (until_us is not None and until_us <= now.until_us)):
        return False
    _save(tx, {"reason": reason, "note": note, "until_us": until_us, "paused_by": by, "paused_at_us": tx.now_us})
    tx.log("", Name.QUEUE_PAUSED, reason=reason, note=_title(note), until_us=until_us, by=by)
    return True


def resume(tx: Tx, *, by: str) -> bool:
    """Let tickets be claimed again; False when they may be already."""
    was = paused(tx)
    if was is None:
        return False
    _save(tx, dict.fromkeys(("reason", "note", "until_us", "paused_by", "paused_at_us")))
    tx.log("", Name.QUEUE_RESUMED, by=by)
    return True


def paused(rx: Rx) -> Pause | None:
    """Return the pause that is in force, or None."""
    found = rx.connection.execute(select(schema.queue)).mappings().one()
    since_us, until_us = found["paused_at_us"], found["until_us"]
    if since_us is None or (until_us is not None and until_us <= rx.now_us):
        return None
    return Pause(found["reason"], found["note"], found["paused_by"], since_us, until_us)


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


def _title(note: str) -> str:
    return next(iter(note.strip().splitlines()), "")[:_TITLE_CHARS]


def _save(tx: Tx, values: dict[str, str | int | None]) -> None:
    tx.connection.execute(update(schema.queue).where(_q.id == 1).values(values))
