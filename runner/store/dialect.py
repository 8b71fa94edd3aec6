"""What SQLite and PostgreSQL need to be told, each in its own words.

Both end up alike: one writing transaction at a time, readers that see one moment and
cannot write, and no wait without an end.

Knows connections and the schema's version; does not know what is in the tables.
"""

import time
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_random_exponential

from runner.errors import ConfigError
from runner.store import place
from runner.store.errors import NothingYet
from runner.store.schema import HEAD

_BUSY_MS = 10_000
_WAL_BYTES = 64 * 1024 * 1024
_WRITERS_LOCK = 0x7469636B65743031  # PostgreSQL's advisory locks have numbers; ours spells "ticket01"
_CONNECTING_S = 15.0
_INVALID_TRANSACTION_STATE = "25"
"""A class of SQLSTATEs, by https://www.postgresql.org/docs/current/errcodes-appendix.html."""

_SQLITE_READER = (f"busy_timeout={_BUSY_MS}", "mmap_size=0", "query_only=1", "wal_autocheckpoint=0")
_SQLITE_WRITER = (
    f"busy_timeout={_BUSY_MS}",
    "mmap_size=0",
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    f"journal_size_limit={_WAL_BYTES}",
)

_POSTGRESQL = {
    "application_name": "ticket-runner",
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "options": "-c idle_in_transaction_session_timeout=60000 -c lock_timeout=10000 -c statement_timeout=30000",
}


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite URL, None for another database's."""
    parsed = make_url(url)
    return Path(parsed.database or "") if parsed.drivername == "sqlite" else None


def copy(engine: Engine, path: Path) -> None:
    """Write what is committed now to the new SQLite file `path`; nobody waits for it.

    The file of the database itself is never opened: closing it would drop this process's locks on it.
    """
    with engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")  # of the transaction that any statement begins: it cannot be done in one
        connection.exec_driver_sql("PRAGMA query_only=0")  # it counts the new file as a write
        try:
            connection.exec_driver_sql("VACUUM INTO ?", (str(path),))
        finally:
            connection.exec_driver_sql("PRAGMA query_only=1")


def sqlite_url(path: Path) -> str:
    """Return the URL of the database file `path`, whatever characters are in it."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def engines(url: str, *, read_only: bool) -> tuple[Engine, Engine | None]:
    """Return what reads and, unless `read_only`, what writes.

    Raises:
        ConfigError: The URL, its driver or its place cannot be used.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as e:
        raise ConfigError("the database's URL cannot be read: sqlite:////path or postgresql+psycopg://...") from e
    match parsed.drivername:
        case "sqlite":
            return _sqlite(parsed, read_only=read_only)
        case "postgresql+psycopg":
            return _postgresql(parsed, read_only=read_only)
        case other:
            raise ConfigError(f"the database cannot be {other}: sqlite:////path or postgresql+psycopg://...")


def connect(engine: Engine) -> Connection:
    """Return a connection; over a network, try for some seconds."""
    return engine.connect() if engine.dialect.name == "sqlite" else _patiently(engine)


def now_us(connection: Connection) -> int:
    """Return the time by the clock that leases are kept by."""
    if connection.dialect.name == "sqlite":
        return time.time_ns() // 1000
    return int(
        connection.execute(text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")).scalar_one()
    )


def bring_to_head(engine: Engine, *, read_only: bool) -> None:
    """Make the tables, or migrate them, in one transaction.

    Raises:
        ConfigError: A newer version made them, or `read_only` and they are not this version's.
    """
    with connect(engine) as connection, connection.begin():
        found = _version(connection)
        if found == HEAD:
            return
        if read_only and found is None:
            raise NothingYet("the database is empty")
        from runner.store import migrate  # noqa: PLC0415  # alembic takes 0.3 s to import, and reading commands are quick

        migrate.check(found)
        if read_only:
            raise ConfigError(f"the database has schema {found} and this version needs {HEAD}: start the daemon once")
        migrate.to_head(connection)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return None if version is None else str(version)


def _sqlite(url: URL, *, read_only: bool) -> tuple[Engine, Engine | None]:
    path = Path(url.database or "")
    if not path.is_absolute():
        raise ConfigError(f"the database's path {url.database!r} is not absolute: sqlite:////path/to/file")
    if read_only and not path.exists():
        raise NothingYet(f"there is no database {path}")
    if not read_only:
        place.prepare(path)
    reader = _sqlite_engine(path, "ro", pool_size=4, pragmas=_SQLITE_READER, begin="BEGIN")
    if read_only:
        return reader, None
    return reader, _sqlite_engine(path, "rw", pool_size=1, pragmas=_SQLITE_WRITER, begin="BEGIN IMMEDIATE")


def _sqlite_engine(path: Path, mode: str, *, pool_size: int, pragmas: tuple[str, ...], begin: str) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=path.as_uri().replace("file://", "file:"), query={"mode": mode, "uri": "true"}),
        connect_args={"isolation_level": None},  # else sqlite3 begins by itself, and too late
        pool_size=pool_size,
        max_overflow=0,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def _tell(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
        del entry
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _postgresql(url: URL, *, read_only: bool) -> tuple[Engine, Engine | None]:
    try:
        base = create_engine(
            url, connect_args=_POSTGRESQL, pool_size=1, max_overflow=4, pool_pre_ping=True, hide_parameters=True
        )
    except ModuleNotFoundError as e:
        raise ConfigError(f"PostgreSQL needs {e.name}: install ticket-runner[postgres]") from e

    @event.listens_for(base, "handle_error")
    def _leave(context: ExceptionContext) -> None:
        """Keep no connection to a server that only reads, as after a failover, or that gave up on a transaction."""
        state = getattr(context.original_exception, "sqlstate", None) or ""
        context.is_disconnect = context.is_disconnect or state.startswith(_INVALID_TRANSACTION_STATE)

    reader = base.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    if read_only:
        return reader, None
    writer = base.execution_options(isolation_level="READ COMMITTED")

    @event.listens_for(writer, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS_LOCK})")

    return reader, writer


@retry(
    retry=retry_if_exception_type(OperationalError),
    stop=stop_after_delay(_CONNECTING_S),
    wait=wait_random_exponential(multiplier=0.2, max=2.0),
    reraise=True,
)
def _patiently(engine: Engine) -> Connection:
    return engine.connect()
