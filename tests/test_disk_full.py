"""A disk that fills up: what was acknowledged stays, it is said what is wrong, and all goes on when there is space."""

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.events import Name
from runner.store import Store, log, sqlite_url, tickets
from tests.daemons import Site, bash, say

ROOT = Path(__file__).parent.parent
MIB = 1024 * 1024
WRITER = """
import sys
from pathlib import Path
from runner.store import Store, StoreUnavailable, sqlite_url, tickets
from tickets.ticket import Spec

store = Store.open(sqlite_url(Path(sys.argv[1])))
for line in sys.stdin:
    try:
        store.transact(tickets.take_in, "folder", Spec(line.strip(), "x" * 50_000))
        print("saved", flush=True)
    except StoreUnavailable as error:
        print(error, flush=True)
"""


@dataclass
class SmallDisk:
    """A file system of some MiB."""

    path: Path

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def fill(self) -> None:
        """Leave no space."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass

    def free(self) -> None:
        """Give the space back."""
        self._ballast.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mount a small file system."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", path], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.decode().strip()}")
    yield SmallDisk(path)
    subprocess.run(["umount", "--lazy", path], check=True)


class Writer:
    """A process with a store that takes in tickets."""

    def __init__(self, database: Path) -> None:
        self.saved: list[str] = []
        self._tried = 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER, database],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def take_in(self) -> str:
        """Let it take a ticket in, and return what became of that."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._tried += 1
        ticket = f"t{self._tried}"
        self.process.stdin.write(f"{ticket}\n")
        said = self.process.stdout.readline().strip()
        if said == "saved":
            self.saved.append(ticket)
        return said

    def until_it_fails(self) -> str:
        """Let it take tickets in until one cannot be, and return why."""
        while (said := self.take_in()) == "saved":
            assert self._tried < 10_000
        return said

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


def check(database: Path, saved: list[str]) -> None:
    """All that was acknowledged is there, and nothing that was refused."""
    store = Store.open(sqlite_url(database), read_only=True)
    try:
        assert store.read(lambda rx: rx.connection.exec_driver_sql("PRAGMA integrity_check").scalar()) == "ok"
        assert {*store.read(tickets.states)} == {*saved}
        assert [entry.event.ticket for entry in store.read(log.events)] == saved
    finally:
        store.close()


@pytest.mark.parametrize(
    "killed", [pytest.param(False, id="goes_on"), pytest.param(True, id="killed", marks=pytest.mark.proof)]
)
def test_a_full_disk_loses_nothing(small_disk: SmallDisk, killed: bool) -> None:
    """When a disk is full each write is refused, also after a kill; with space again writing goes on."""
    database = small_disk.path / "db"
    writer = Writer(database)
    try:
        assert writer.take_in() == "saved"
        small_disk.fill()
        said = writer.until_it_fails()
        assert "the database does not answer: database or disk is full" in said
        assert writer.take_in() != "saved"
        if killed:
            writer.end()
        else:
            check(database, writer.saved)
        small_disk.free()
        saved = writer.saved
        if killed:
            writer = Writer(database)
            writer._tried = 10_000
        assert [writer.take_in() for _ in range(5)] == ["saved"] * 5
        check(database, saved + writer.saved if killed else writer.saved)
    finally:
        writer.end()


def test_a_limit_on_file_sizes_loses_nothing(tmp_path: Path) -> None:
    """When a file may not grow each write that would need it is refused, and writing goes on when it may again."""
    database = tmp_path / "db"
    writer = Writer(database)
    try:
        assert writer.take_in() == "saved"
        _, hard = resource.prlimit(writer.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(writer.process.pid, resource.RLIMIT_FSIZE, (MIB // 2, hard))
        said = writer.until_it_fails()
        assert said.startswith("the database does not answer: ")
        check(database, writer.saved)
        resource.prlimit(writer.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert [writer.take_in() for _ in range(5)] == ["saved"] * 5
        check(database, writer.saved)
    finally:
        writer.end()


def on(disk: SmallDisk, root: Path) -> AbstractContextManager[Site]:
    """Return a site of which all but the queue and the repository is on the small disk."""
    return Site.at(root, state_directory=str(disk.path / "state"), queue_directory=str(root / "queue"))


@pytest.mark.proof
@pytest.mark.timeout(180)
def test_a_daemon_waits_for_space(tmp_path: Path, small_disk: SmallDisk) -> None:
    """A daemon whose disk is full says so and starts nothing, and works when there is space again."""
    with on(small_disk, tmp_path) as site:
        site.plays(bash("echo one > one.txt"), say("Done."))
        daemon = site.start()
        site.wait(site.home.socket.exists, "the daemon to listen")
        small_disk.fill()
        site.add("t", "Do it. " * 30_000)  # beyond what the database's log has left over
        site.wait(lambda: "store.unavailable" in daemon.said(), "it to say what is wrong")
        assert "database or disk is full" in daemon.said()
        assert site.names("t") == []
        small_disk.free()
        site.wait_for(Name.TICKET_FINISHED, "t")
        assert site.show("t").ticket.attempts == 0
        daemon.signal(signal.SIGTERM)
        assert daemon.ends() == 0


@pytest.mark.proof
@pytest.mark.timeout(180)
def test_a_disk_that_fills_up_under_an_agent(tmp_path: Path, small_disk: SmallDisk) -> None:
    """A ticket whose agent worked when the disk was full is finished when there is space, at no attempt."""
    go = tmp_path / "go"
    with on(small_disk, tmp_path) as site:
        site.plays(
            bash(f"touch in-tool; for i in $(seq 600); do test -e {go} && exit; sleep 0.1; done"),
            bash("rm in-tool; echo one > one.txt"),
            say("Done."),
        )
        site.add("t")
        daemon = site.start()
        site.waits_in_tool("t", "in-tool")
        small_disk.fill()
        go.touch()
        site.wait(lambda: "store.unavailable" in daemon.said(), "it to say what is wrong")
        assert site.processes() == []
        small_disk.free()
        site.wait_for(Name.TICKET_PUT_BACK, "t")
        daemon.signal(signal.SIGTERM)
        assert daemon.ends() == 0
        site.let_the_wait_pass("t")
        assert site.works_once() == 0
        shown = site.show("t")
        assert (shown.ticket.state, shown.ticket.attempts) == ("done", 0)
        assert site.delivered("t") == ["Work on t"]
        assert shown.spent_microusd == sum(run.cost.microusd for run in shown.runs if run.cost)
        assert len({run.session for run in shown.runs}) == 1
