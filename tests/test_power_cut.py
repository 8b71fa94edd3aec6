"""Nothing that SQLite acknowledged is lost when the power is cut, at whatever write and whatever the disk has kept."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from runner.store import Store, claims, log, queue, sqlite_url, tickets
from tests.disks import Disk, Step, Survives
from tests.recording import can_record, fingerprint

ROOT = Path(__file__).parent.parent
SEED = int(os.environ.get("POWER_CUT_SEED", "0")) or int.from_bytes(os.urandom(3))
"""Of what is left of unsynced writes; printed when a test fails."""
MEMORY = Path("/dev/shm")  # noqa: S108  # thousands of images, each of them looked at once

pytestmark = pytest.mark.skipif(not can_record(), reason="this Python's SQLite does not show how it reaches the disk")


@dataclass(frozen=True)
class Recording:
    """A workload as it went to the disk."""

    steps: list[Step]
    held: list[str]
    """What the database held after each acknowledgement, from before the first on."""


@dataclass
class Losses:
    """What became of the images."""

    images: int = 0
    lost: int = 0
    broken: int = 0


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Return what the workload did to the disk."""
    return record(tmp_path_factory.mktemp("recording"))


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Path]:
    """Return a directory for images, in memory if that is there."""
    directory = MEMORY / f"power-cut-{os.getpid()}" if os.access(MEMORY, os.W_OK) else tmp_path / "image"
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def record(directory: Path, *pragmas: str) -> Recording:
    """Return what a workload did to the disk, over a store whose writer was told `pragmas` besides."""
    command = [sys.executable, "-m", "tests.recording", str(directory), *(f"--pragma={pragma}" for pragma in pragmas)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    steps = [Step(what, name, at, bytes.fromhex(data)) for what, name, at, data in told["steps"]]
    return Recording(steps, told["held"])


def cut_everywhere(recording: Recording, place: Path, *, every: int = 1) -> Losses:
    """Cut the power after each `every`-th step, in each way, and look at what is left."""
    sys.stdout.write(f"POWER_CUT_SEED={SEED}\n")
    rng, disk, losses = Random(SEED), Disk(), Losses()
    seen: dict[int, str | None] = {}
    for number, step in enumerate(recording.steps):
        disk.do(step)
        if number % every != SEED % every:
            continue
        for survives in Survives:
            files = disk.cut(survives, rng)
            image = hash(tuple(sorted(files.items())))
            if image not in seen:
                write_image(place, files)
                seen[image] = look(place / "db")
            found = seen[image]
            expected = recording.held[disk.acknowledged : disk.acknowledged + 2]  # the one under way may be there
            losses.images += 1
            losses.broken += found is None
            losses.lost += found not in expected
    return losses


def write_image(place: Path, files: Mapping[str, bytes]) -> None:
    """Make a directory with these files and no others."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name, content in files.items():
        (place / name).write_bytes(content)


def look(path: Path) -> str | None:
    """Let SQLite recover and return what the database holds, or None if it is not whole."""
    try:
        with closing(sqlite3.connect(path)) as database:
            if database.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                return None
            return fingerprint(database)
    except sqlite3.DatabaseError:
        return None


def test_a_taste_of_power_cuts(recording: Recording, images: Path) -> None:
    """After power cuts at some steps every acknowledged transaction is there, and one more at most."""
    losses = cut_everywhere(recording, images, every=60)
    assert (losses.lost, losses.broken) == (0, 0)
    assert losses.images > 50


@pytest.mark.proof
@pytest.mark.timeout(240)
def test_power_cuts(recording: Recording, images: Path) -> None:
    """After power cuts at every step every acknowledged transaction is there, and one more at most."""
    losses = cut_everywhere(recording, images)
    assert (losses.lost, losses.broken) == (0, 0)
    assert losses.images > 1000


@pytest.mark.proof
def test_the_cut_is_sharp(tmp_path: Path, images: Path) -> None:
    """Synced less often than the store demands, acknowledged transactions are lost: these images can tell."""
    losses = cut_everywhere(record(tmp_path, "synchronous=NORMAL"), images, every=20)
    assert losses.lost > 10
    assert losses.broken == 0


def test_the_store_goes_on_after_a_power_cut(recording: Recording, images: Path) -> None:
    """A store opened over what a power cut has left has logs without gaps and takes on new tickets."""
    disk = Disk()
    for step in recording.steps[: len(recording.steps) * 2 // 3]:
        disk.do(step)
    write_image(images, disk.cut(Survives.NOTHING, Random(SEED)))
    store = Store.open(sqlite_url(images / "db"))
    epoch = store.transact(queue.begin_epoch, "host", "home", 2)
    left = store.transact(claims.orphans, home="home", epoch=epoch)
    for row in left:
        store.transact(claims.orphan, row.ticket.id, row.ticket.token)
    for ticket in ["", *store.read(tickets.states)]:
        events = [entry.event.seq for entry in store.read(log.events, ticket=ticket)]
        assert events == [*range(1, len(events) + 1)]
    assert len(store.read(tickets.states)) >= 3
    store.close()
