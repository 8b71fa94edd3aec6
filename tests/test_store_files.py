"""The store's file, connections and schema: what survives, what is refused, who waits for whom."""

import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import anyio
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from anyio import from_thread
from sqlalchemy import Connection, event
from sqlalchemy.exc import IntegrityError

from runner.errors import ConfigError
from runner.events import Event, Name
from runner.store import Rx, Store, StoreUnavailable, Tx, log, queue, schema, sqlite_url, tickets
from runner.store.overview import overview
from tests.stores import Place
from tickets.ticket import Spec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a database can be, with characters that a URL gives a meaning to."""
    directory = tmp_path / "a b?#%41"
    directory.mkdir()
    return directory / "tickets.db"


@pytest.fixture
def place(path: Path) -> Iterator[Place]:
    """Return an open database with one daemon."""
    place = Place(sqlite_url(path))
    yield place
    place.store.close()


def pragmas(rx: Rx, *names: str) -> list[object]:
    """Return what SQLite says of a connection."""
    return [rx.connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]


def sql(tx: Tx, statement: str) -> None:
    """Do something that the store has no function for."""
    tx.connection.exec_driver_sql(statement)


def test_files_are_the_owners_alone(path: Path, place: Place) -> None:
    """The database and its log are readable by their owner and by nobody else, also when they were not before."""
    files = [*path.parent.iterdir()]
    assert len(files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    place.store.close()
    path.chmod(0o644)
    Store.open(place.url).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_connections_are_set_up_to_lose_nothing(place: Place) -> None:
    """The writer syncs its log at each commit; readers neither write nor checkpoint; neither maps the file."""
    writer = place.store.transact(pragmas, "journal_mode", "synchronous", "mmap_size", "foreign_keys", "query_only")
    assert writer == ["wal", 2, 0, 1, 0]
    assert place.store.read(pragmas, "query_only", "wal_autocheckpoint", "mmap_size") == [1, 0, 0]
    with pytest.raises(StoreUnavailable, match="readonly"):
        place.store.read(lambda rx: rx.connection.exec_driver_sql("DELETE FROM event"))


def test_reader_sees_one_moment_and_blocks_no_writer(place: Place) -> None:
    """A writer commits while a reader reads, and the reader goes on to see what was there when it began."""
    place.take("a")

    def look_twice(rx: Rx) -> tuple[int, int]:
        before = len(tickets.all_rows(rx))
        place.take("b")
        return before, len(tickets.all_rows(rx))

    assert place.store.read(look_twice) == (1, 1)
    assert len(place.store.read(tickets.all_rows)) == 2


def test_reading_needs_no_daemon(place: Place) -> None:
    """A store that is opened for reading finds everything when no daemon runs, and refuses to write."""
    place.take("a")
    place.store.close()
    reader = Store.open(place.url, read_only=True)
    assert [row.ticket.id for row in reader.read(tickets.all_rows)] == ["a"]
    with pytest.raises(RuntimeError, match="reading only"):
        reader.transact(queue.resume, by="me")
    reader.close()


def test_reading_makes_nothing(path: Path) -> None:
    """Opened for reading, a database that is not there, or is empty, is refused and not made."""
    with pytest.raises(ConfigError, match="no database"):
        Store.open(sqlite_url(path), read_only=True)
    assert [*path.parent.iterdir()] == []
    path.touch()
    with pytest.raises(ConfigError, match="empty"):
        Store.open(sqlite_url(path), read_only=True)


@pytest.mark.parametrize(
    "url", ["", "sqlite://", "sqlite:///relative.db", "mysql://localhost/x", "sqlite:////nowhere/at/all.db"]
)
def test_unusable_url_is_refused(url: str) -> None:
    """A URL of no database that we know, or of no absolute place, is a matter for whoever configured it."""
    with pytest.raises(ConfigError):
        Store.open(url)


def test_newer_schema_is_refused_and_left_alone(place: Place) -> None:
    """A database that a later version made is not opened, both versions are named, and nothing is changed."""
    place.store.transact(sql, "UPDATE alembic_version SET version_num = '9999'")
    place.store.close()
    for read_only in (False, True):
        with pytest.raises(ConfigError, match=f"9999.*{schema.HEAD}"):
            Store.open(place.url, read_only=read_only)


def test_scripts_make_the_tables_of_this_version(place: Place) -> None:
    """The migrations end at the version that the schema names, with the very tables that it describes."""

    def differences(rx: Rx) -> tuple[object, object]:
        context = MigrationContext.configure(rx.connection, opts={"compare_type": True})
        return context.get_current_revision(), compare_metadata(context, schema.metadata)

    assert place.store.transact(differences) == (schema.HEAD, [])


def test_migration_is_done_wholly_or_not_at_all(path: Path) -> None:
    """A migration that fails half way leaves the database as it was."""
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("CREATE TABLE run (x)")  # neither the first nor the last that is made
    with pytest.raises(StoreUnavailable, match="already exists"):
        Store.open(sqlite_url(path))
    with closing(sqlite3.connect(path)) as foreign:
        assert foreign.execute("SELECT name FROM sqlite_master").fetchall() == [("run",)]


def test_opening_again_needs_no_migrations(place: Place) -> None:
    """A database of this version is opened without importing alembic, which takes longer than a reading command may."""
    place.store.close()
    program = "import sys, runner.store as s; s.Store.open(sys.argv[1]).close(); print('alembic' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", program, place.url], capture_output=True, text=True, check=True)
    assert seen.stdout == "False\n"


DIES_INSIDE = """
import os, sys
from runner.events import Event, Name
from runner.store import Store, Tx, queue, tickets
from tickets.ticket import Spec

store = Store.open(sys.argv[1])
store.transact(queue.begin_epoch, "host", "home", os.getpid())
for number in range(20):
    assert store.transact(tickets.take_in, "folder", Spec(f"t{number}", "text"))

def never_ends(tx: Tx) -> None:
    for number in range(20):
        tx.log(f"t{number}", Name.TOOL_STARTED)
    tickets.take_in(tx, "folder", Spec("half", "x" * 1_000_000))
    print("inside", flush=True)
    sys.stdin.read()

store.transact(never_ends)
"""


def test_kill_inside_a_transaction_loses_that_one_alone(path: Path) -> None:
    """A process killed in the middle of a transaction loses it and nothing else, and the next one just goes on."""
    url = sqlite_url(path)
    with subprocess.Popen(
        [sys.executable, "-c", DIES_INSIDE, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"inside\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    reader = Store.open(url, read_only=True)
    assert len(reader.read(tickets.all_rows)) == 20
    assert reader.read(pragmas, "integrity_check") == ["ok"]
    reader.close()
    place = Place(url)
    place.take("half")
    assert {entry.event.name for entry in place.store.read(log.events, ticket="t7")} == {Name.TICKET_TAKEN}
    assert len(place.store.read(tickets.all_rows)) == 21
    place.store.close()


def test_writers_take_turns(place: Place) -> None:
    """Threads that write at once lose nothing and leave no gap, and each is told of before the next begins."""
    place.take("a")
    told: list[tuple[int, int]] = []

    def tell(said: Event) -> None:
        told.append((said.seq, place.log("a")[-1].seq))

    store = Store.open(place.url, on_event=tell)
    threads = [
        Thread(target=lambda: [store.transact(Tx.log, "a", Name.TOOL_STARTED) for _ in range(25)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert told == [(seq, seq) for seq in range(2, 102)]
    assert [saved.seq for saved in place.log("a")] == [*range(1, 102)]


@pytest.mark.anyio
async def test_cancelled_write_is_whole_or_absent(place: Place) -> None:
    """A cancelled write is waited for and saved whole, one that had not begun is not saved, and the next one works."""
    place.take("a")
    began, go_on, ended = anyio.Event(), threading.Event(), anyio.Event()

    def slow(tx: Tx) -> None:
        tx.log("a", Name.TOOL_STARTED)
        from_thread.run_sync(began.set)
        assert go_on.wait(30)
        tx.log("a", Name.TOOL_ENDED)

    async def write() -> None:
        try:
            await place.store.write(slow)
        finally:
            ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        await began.wait()
        group.start_soon(place.store.write, queue.end_epoch, place.epoch)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.wait_all_tasks_blocked()
            assert not ended.is_set()
            go_on.set()
    await place.store.write(Tx.log, "a", Name.AGENT_FINISHED)
    names = [saved.name for saved in place.log("a")]
    assert names == [Name.TICKET_TAKEN, Name.TOOL_STARTED, Name.TOOL_ENDED, Name.AGENT_FINISHED]
    assert Name.DAEMON_STOPPED not in {saved.name for saved in place.log("")}


@pytest.mark.parametrize("read_only", [True, False])
def test_a_damaged_database_is_said_in_one_line(path: Path, *, read_only: bool) -> None:
    """A file that is no database is refused with what to do, and none of what is in it is said."""
    path.write_bytes(b"secret words " * 1000)
    with pytest.raises(ConfigError, match=r"^the database is damaged \(file is not a database\): restore a backup"):
        Store.open(sqlite_url(path), read_only=read_only)


def test_full_disk_is_said_and_survived(place: Place) -> None:
    """When the disk is full the write is refused as a whole, reading goes on, and writing does when there is space."""
    place.take("a")
    full, _ = place.store.transact(pragmas, "page_count", "max_page_count=1")
    with pytest.raises(StoreUnavailable, match="full"):
        place.store.transact(tickets.take_in, "folder", Spec("b", "x" * 100_000))
    assert [row.ticket.id for row in place.store.read(tickets.all_rows)] == ["a"]
    place.store.transact(pragmas, f"max_page_count={full}000")
    place.take("b")


def test_errors_do_not_show_what_was_written(place: Place) -> None:
    """An error of the database names its statement but not the values that were to be saved."""
    place.take("a")

    def twice(tx: Tx) -> None:
        tx.connection.execute(
            schema.message.insert().values(session="s3cret", uuid="u", run="r", json="s3cret", at_us=1)
        )

    with pytest.raises(IntegrityError) as error:
        place.store.transact(twice)
    assert "s3cret" not in str(error.value)


def test_overview_asks_as_often_for_many_as_for_one(place: Place) -> None:
    """The overview of 1,000 tickets takes as many statements as that of one."""
    statements: list[str] = []

    def counted(rx: Rx) -> int:
        def note(connection: Connection, cursor: object, statement: str, *_: object) -> None:
            del connection, cursor
            statements.append(statement)

        event.listen(rx.connection, "before_cursor_execute", note)
        lines = overview(rx)
        event.remove(rx.connection, "before_cursor_execute", note)
        return len(lines)

    def fill(tx: Tx) -> None:
        for number in range(999):
            tickets.take_in(tx, "folder", Spec(f"t{number}", "text"))

    place.take("a")
    assert place.store.read(counted) == 1
    for_one, statements = statements, []
    place.store.transact(fill)
    assert place.store.read(counted) == 1000
    assert statements == for_one
    assert len(statements) == 3
