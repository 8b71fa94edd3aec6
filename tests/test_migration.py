"""A later version opens what this one has filled: its data is migrated wholly, or left alone.

There is one version of the tables so far. The later one is made here: a copy of the
program with a second script, run as that version would be.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from runner.errors import ConfigError
from runner.events import fold_log
from runner.store import Store, log, tickets
from runner.store.schema import HEAD
from tests.stores import Place
from tickets.ticket import Cause, Held, PutBack, Reason

ROOT = Path(__file__).parent.parent
LATER = "9000"
SCRIPT = '''
"""A column that is made out of what there is."""

import sqlalchemy as sa
from alembic import op

revision = "<LATER>"
down_revision = "<HEAD>"


def upgrade() -> None:
    """Say in a word what the priority says in a number."""
    op.add_column("ticket", sa.Column("urgency", sa.Text(), nullable=False, server_default="none"))
    op.execute("UPDATE ticket SET urgency = 'high' WHERE priority > 0")
    op.create_index("ix_ticket_urgency", "ticket", ["urgency"])
'''
FAILS = '    op.execute("INSERT INTO nowhere VALUES (1)")\n'
PROGRAM = """
import json, sys
import runner
from runner.store import Store, claims, queue, schema
from sqlalchemy import select

store = Store.open(sys.argv[1], read_only="read" in sys.argv)
query = select(schema.ticket.c.id, schema.ticket.c.urgency)
urgencies = dict(map(tuple, store.read(lambda rx: rx.connection.execute(query).all())))
epoch = store.transact(queue.begin_epoch, "host", "home", 2)
row = store.transact(claims.take_next, epoch=epoch, home="host:/home", lease_s=10)
print(json.dumps({"from": runner.__file__, "urgencies": urgencies, "claimed": row.ticket.id}))
store.close()
"""


@pytest.fixture
def filled(database: str) -> Place:
    """Return a database in which tickets have lived; nobody has it open."""
    place = Place(database)
    place.take("worked")
    assert place.claim() is not None
    place.run("worked")
    place.store.transact(tickets.apply, "worked", PutBack(1, Cause.WEATHER, place.clock.now_us + 1))
    place.take("held", priority=3)
    assert place.claim() is not None
    place.store.transact(tickets.apply, "held", Held(1, Reason.BUDGET, "spent"))
    place.clock.pass_s(1)
    place.store.close()
    return place


def later_version(directory: Path, script: str = SCRIPT) -> Path:
    """Make a program that differs from this one by a column and the script that makes it."""
    for package in ("runner", "tickets"):
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    schema = directory / "runner/store/schema.py"
    first = '    Column("canonical", Words, nullable=False, unique=True),\n'
    source = schema.read_text().replace(f'HEAD = "{HEAD}"', f'HEAD = "{LATER}"')
    assert first in source
    schema.write_text(source.replace(first, f'{first}    Column("urgency", Words, nullable=False),\n'))
    (directory / f"runner/store/migrations/versions/v{LATER}.py").write_text(
        script.replace("<LATER>", LATER).replace("<HEAD>", HEAD)
    )
    return directory


def run(version: Path, url: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Let a version of the program open the database and work."""
    command = [sys.executable, "-c", PROGRAM, url, *options]
    return subprocess.run(command, cwd=version, capture_output=True, text=True, check=False)


def everything(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Return what every table holds."""
    engine = create_engine(url)
    names = ("ticket", "session", "run", "event", "epoch", "queue", "alembic_version")
    with engine.connect() as connection:
        held = {name: [*map(tuple, connection.execute(text(f"SELECT * FROM {name}")))] for name in names}  # noqa: S608
    engine.dispose()
    return held


def test_a_later_version_migrates_what_is_there(filled: Place, tmp_path: Path) -> None:
    """A later version makes its column out of the old data and goes on with the old tickets; then this one refuses."""
    version = later_version(tmp_path / "later")
    before = everything(filled.url)
    refused = run(version, filled.url, "read")
    assert f"the database has schema {HEAD} and this version needs {LATER}" in refused.stderr
    assert everything(filled.url) == before
    migrated = run(version, filled.url)
    assert migrated.returncode == 0, migrated.stderr
    told = json.loads(migrated.stdout)
    assert Path(told["from"]).is_relative_to(version)
    assert told["urgencies"] == {"worked": "none", "held": "high"}
    assert told["claimed"] == "worked"
    with pytest.raises(ConfigError, match=f"{LATER}.*{HEAD}"):
        Store.open(filled.url)
    after = everything(filled.url)
    assert after["event"][: len(before["event"])] == before["event"]
    assert (after["session"], after["run"]) == (before["session"], before["run"])


@pytest.mark.proof
def test_a_migration_that_fails_leaves_the_data(filled: Place, tmp_path: Path) -> None:
    """A later version whose script fails half way leaves tables and data as they were, for this one to go on."""
    version = later_version(tmp_path / "later", SCRIPT + FAILS)
    before = everything(filled.url)
    assert "nowhere" in run(version, filled.url).stderr
    assert everything(filled.url) == before
    store = Store.open(filled.url)
    for ticket in ("worked", "held"):
        events = [entry.event for entry in store.read(log.events, ticket=ticket)]
        assert fold_log(ticket, events) == store.read(tickets.get, ticket).ticket
    store.close()
