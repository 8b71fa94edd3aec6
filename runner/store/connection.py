"""How a transaction begins, ends and tells of what it saved.

One writing transaction at a time, on both databases: SQLite has one writing
connection and `BEGIN IMMEDIATE`, PostgreSQL a lock that every writing transaction
takes first. So event ids rise in the order of commits, nothing deadlocks, and a row
that was read does not change before it is written.

Knows the databases' dialects and the log's table; does not know what tickets do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Concatenate, ParamSpec, Self, TypeVar

import anyio
from anyio import to_thread
from sqlalchemy import Connection, Engine, update
from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError

from runner.events import VERSION, Event, Name, Value
from runner.store import dialect, schema
from runner.store.errors import StoreDamaged, StoreUnavailable, UnknownTicket
from runner.store.text import to_json

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rx:
    """A transaction that may read; all that it reads is of one moment."""

    connection: Connection
    now_us: int
    """By the database's clock, when the transaction began."""


@dataclass(frozen=True, slots=True)
class Tx(Rx):
    """A transaction that may write; nobody else writes before its end."""

    events: list[Event] = field(default_factory=list)
    """What it has logged; told to others after the commit."""

    def log(
        self,
        ticket: str,
        name: Name,
        payload: Mapping[str, Value] = MappingProxyType({}),
        /,
        *,
        run: str | None = None,
        **values: Value,
    ) -> Event:
        """Save an event under the ticket's next number.

        Args:
            ticket: The ticket's id, or "" for the daemon and its queue.
            name: What happened.
            payload: Values, never prompt text, tool output or secrets.
            run: The run in which it did.
            values: More of the payload.

        Raises:
            UnknownTicket: There is no such ticket.
        """
        owner = schema.ticket if ticket else schema.queue
        number = update(owner).values(seq=owner.c.seq + 1).where(owner.c.id == (ticket or 1)).returning(owner.c.seq)
        seq = self.connection.execute(number).scalar_one_or_none()
        if seq is None:
            raise UnknownTicket(ticket)
        event = Event(name, ticket, seq, self.now_us, run, {**payload, **values})
        self.connection.execute(
            schema.event.insert().values(
                ticket=ticket,
                seq=seq,
                run=run,
                name=name,
                version=VERSION,
                payload=to_json(event.payload),
                at_us=self.now_us,
            )
        )
        self.events.append(event)
        return event


class Store:
    """The database: one connection that writes, some that read."""

    def __init__(
        self,
        *,
        reader: Engine,
        writer: Engine | None,
        clock: Callable[[], int] | None,
        on_event: Callable[[Event], None] | None,
    ) -> None:
        self._reader, self._writer, self._clock, self._on_event = reader, writer, clock, on_event
        self._writing = Lock()
        self._one = anyio.CapacityLimiter(1)

    @classmethod
    def open(
        cls,
        url: str,
        *,
        clock: Callable[[], int] | None = None,
        on_event: Callable[[Event], None] | None = None,
        read_only: bool = False,
    ) -> Self:
        """Open the database, making or migrating its tables unless `read_only`.

        Args:
            url: `sqlite:////absolute/path`, or `postgresql+psycopg://...`.
            clock: Returns microseconds UTC; None for the database's clock.
            on_event: Called with each event after its commit, in order, in the writing
                thread; the next write waits for it, so it must not write itself. What it
                raises is logged and reaches nobody.
            read_only: Write nothing, not even tables.

        Raises:
            ConfigError: The URL is not usable, its place is a network file system, or
                the tables were made by a newer version (or an older one, if `read_only`).
            StoreUnavailable: The database does not answer.
            StoreDamaged: Its file is damaged.
        """
        reader, writer = dialect.engines(url, read_only=read_only)
        store = cls(reader=reader, writer=writer, clock=clock, on_event=on_event)
        try:
            with _translated():
                dialect.bring_to_head(writer or reader, read_only=read_only)
        except BaseException:
            store.close()
            raise
        return store

    def transact(self, fn: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `fn` does in one transaction; an exception of `fn` leaves nothing of it.

        Raises:
            StoreUnavailable: The database did not take it. If that was during the commit
                itself over a network, it may be saved all the same.
        """
        if self._writer is None:
            raise RuntimeError("this store was opened for reading only")
        with self._writing:
            with _translated(), dialect.connect(self._writer) as connection, connection.begin():
                tx = Tx(connection, self._now_us(connection))
                result = fn(tx, *args, **kwargs)
            if self._on_event is not None:
                self._tell(tx.events, self._on_event)
        return result

    async def write(self, fn: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Do `transact` in the writing thread. Cancelled, it has been done wholly or not at all."""
        return await to_thread.run_sync(lambda: self.transact(fn, *args, **kwargs), limiter=self._one)

    def read(self, fn: Callable[Concatenate[Rx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `fn` reads, all of one moment; no writer waits for it.

        `fn` fetches everything before it returns: an open reader keeps SQLite's log growing.
        """
        with _translated(), dialect.connect(self._reader) as connection, connection.begin():
            return fn(Rx(connection, self._now_us(connection)), *args, **kwargs)

    def copy_to(self, path: Path) -> bool:
        """Write what is committed now to the new file `path`; False when the database is not SQLite, and has no file.

        Raises:
            StoreUnavailable: The disk is full, or the database does not answer.
        """
        if self._reader.dialect.name != "sqlite":
            return False
        with _translated():
            dialect.copy(self._reader, path)
        return True

    def close(self) -> None:
        """Close every connection that is not in use."""
        self._reader.dispose()
        if self._writer is not None:
            self._writer.dispose()

    @staticmethod
    def _tell(events: Iterable[Event], on_event: Callable[[Event], None]) -> None:
        """Tell of what is committed: a failure to hear it is no failure of the write."""
        for event in events:
            try:
                on_event(event)
            except Exception:  # noqa: BLE001  whatever it is, the caller's write was done
                from runner import log  # noqa: PLC0415  structlog is slow to import, and this never happens

                log.defect("event.not_told", of=str(event.name))

    def _now_us(self, connection: Connection) -> int:
        if self._clock is not None:
            return self._clock()
        return dialect.now_us(connection)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise the database's own failures as ours: nobody above may import SQLAlchemy to catch them."""
    try:
        yield
    except (OperationalError, InterfaceError) as e:
        raise StoreUnavailable(str(e.orig).strip()) from e
    except DatabaseError as e:
        if e.connection_invalidated:
            raise StoreUnavailable(str(e.orig).strip()) from e
        if type(e) is DatabaseError:  # SQLite's for a file that is damaged; its subclasses say what was asked wrongly
            raise StoreDamaged(str(e.orig).strip()) from e
        raise
