"""The state directory: made, checked, and held by one daemon at a time."""

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import ConfigError, Exit
from runner.home import Home, Locked
from runner.mounts import network_filesystem

ROOT = Path(__file__).parent.parent
OTHER_UID = 12345
ELSEWHERE = "choose another directory, or let this user write there"
HOLD = """
import sys
from pathlib import Path
from runner.home import Home
with Home(Path(sys.argv[1]), Path(sys.argv[1], "queue")).lock():
    print("held", flush=True)
    sys.stdin.read()
"""
ASK = """
import sys
from pathlib import Path
from runner.home import Home
print("asking", flush=True)
while True:
    Home(Path(sys.argv[1]), Path(sys.argv[1], "queue")).holder()
"""
PREPARE_AS_OTHER = """
import os, sys
from pathlib import Path
from runner.home import Home
if os.geteuid() == 0:
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
Home(Path(sys.argv[1]), Path(sys.argv[1], "queue")).prepare()
"""
MOUNTINFO = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:40 / /mnt rw - tmpfs tmpfs rw
23 22 0:41 / /mnt/share rw,nosuid shared:7 master:2 - nfs4 host:/export rw
24 21 8:2 / /mnt/share/local rw - xfs /dev/sdb rw
25 21 0:42 / /with\040space\134 rw - virtiofs tag rw
26 21 0:43 / /twice rw - nfs host:/a rw
27 21 8:3 / /twice rw - btrfs /dev/sdc rw
28 21 0:44 / /ssh rw - fuse.sshfs me@host: rw
29 21 0:45 / /overlay rw - fuse.fuse-overlayfs overlay rw
30 21 0:46 / /unknown rw - fuse.somecloud bucket rw
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home that is not made yet."""
    return Home(tmp_path / "state", tmp_path / "state" / "queue")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Return a directory that every user can reach, as those of pytest cannot be."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def refusal(home: Home, repository: Path | None = None) -> str:
    """Return why `home` is not fit."""
    with pytest.raises(ConfigError) as caught:
        home.prepare(repository)
    assert caught.value.exit_code is Exit.CONFIG
    return str(caught.value)


def holder_process(home: Home) -> subprocess.Popen[str]:
    """Return a process that holds `home` until its stdin ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_directories_are_made_for_their_owner_alone(home: Home) -> None:
    """All directories are there afterwards with mode 0700 and nothing in them, and a second time changes nothing."""
    home.prepare()
    home.prepare()
    made = {home.path, home.queue, home.worktrees, home.aside, home.claude, home.user_home, home.tmp}
    assert {home.path, *home.path.rglob("*")} == made
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700}


def test_a_directory_that_cannot_be_made_is_refused() -> None:
    """Where nothing can be made, not even by root, the home is refused with the reason."""
    place = Path("/proc/ticket-runner")
    assert (
        refusal(Home(place, place / "queue"))
        == f"/proc/ticket-runner cannot be made: No such file or directory: {ELSEWHERE}"
    )


def test_a_file_in_the_way_is_refused(home: Home) -> None:
    """A file where the home should be is refused."""
    home.path.touch()
    assert refusal(home) == f"{home.path} cannot be made: File exists: {ELSEWHERE}"


def test_a_home_of_another_user_is_refused(home: Home) -> None:
    """A state directory that belongs to someone else is refused with both names, also for root."""
    home.path.mkdir()
    if os.geteuid() == 0:
        os.chown(home.path, OTHER_UID, OTHER_UID)
        assert refusal(home).startswith(f"{home.path} belongs to user {OTHER_UID} and this is root: ")
    else:
        assert refusal(Home(Path("/usr"), home.queue)).startswith("/usr belongs to user root and this is ")


def test_a_queue_of_another_user_is_taken(home: Home, tmp_path: Path) -> None:
    """The queue may belong to whoever puts tickets into it."""
    queue = tmp_path / "tickets"
    queue.mkdir()
    if os.geteuid() == 0:
        os.chown(queue, OTHER_UID, OTHER_UID)
    Home(home.path, queue).prepare()


def test_a_home_that_cannot_be_written_is_refused(open_directory: Path) -> None:
    """A state directory of one's own without the right to write is refused with the reason."""
    state = open_directory / "state"
    state.mkdir(mode=0o500)
    uid = os.geteuid() or OTHER_UID
    if os.geteuid() == 0:
        os.chown(state, uid, uid)
    child = subprocess.run(
        [sys.executable, "-c", PREPARE_AS_OTHER, str(state), str(uid)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = f"runner.errors.ConfigError: {state} cannot be written: Permission denied: {ELSEWHERE}"
    assert child.stderr.splitlines()[-1] == said


@pytest.mark.parametrize("inside", ["state", "queue", "both"])
def test_nothing_of_ours_is_in_the_repository(tmp_path: Path, inside: str) -> None:
    """A state or queue directory inside the user's checkout is refused, also when a link leads there."""
    repository, link = tmp_path / "repository", tmp_path / "link"
    repository.mkdir()
    link.symlink_to(repository)
    state = link / "state" if inside != "queue" else tmp_path / "state"
    queue = link / "queue" if inside != "state" else tmp_path / "queue"
    assert "is inside the repository" in refusal(Home(state, queue), repository)
    assert list(repository.iterdir()) == []
    Home(tmp_path / "repository-state", tmp_path / "repository-queue").prepare(repository)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", None),
        ("/home/me", None),
        ("/mnt", None),
        ("/mnt/sharex", None),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/deep/er", "nfs4"),
        ("/mnt/share/local/x", None),
        ("/with space\\/x", "virtiofs"),
        ("/twice/x", None),
        ("/ssh", "fuse.sshfs"),
        ("/overlay", None),
        ("/unknown", "fuse.somecloud"),
    ],
)
def test_network_file_systems_are_known(path: str, kind: str | None) -> None:
    """The deepest mount decides, the later of two at one point, with its escapes undone."""
    assert network_filesystem(MOUNTINFO, Path(path)) == kind


def test_broken_mountinfo_is_no_network() -> None:
    """Lines that are no mounts are passed over."""
    assert network_filesystem("\n1 2 3\nx - nfs\n - \n", Path("/x")) is None


def test_a_second_daemon_is_told_who_holds_the_home(home: Home) -> None:
    """A home that another process holds is refused at once with 75 and its pid, and is free after its end."""
    home.prepare()
    assert home.holder() is None
    with holder_process(home) as process:
        assert home.holder() == process.pid
        with pytest.raises(Locked, match=f"held by process {process.pid}: one daemon at a time") as caught, home.lock():
            pass
        assert int(caught.value.exit_code) == 75
        assert home.holder() == process.pid
    assert process.returncode == 0
    assert home.holder() is None
    with home.lock():
        pass


def test_a_killed_daemon_holds_nothing(home: Home) -> None:
    """After kill -9 the home is free, whatever the lock's file says."""
    home.prepare()
    with holder_process(home) as process:
        process.kill()
    assert home.lock_file.read_text() == f"{process.pid}\n"
    assert home.holder() is None
    with home.lock():
        assert home.lock_file.read_text() == f"{os.getpid()}\n"


def test_a_lock_is_held_against_its_own_process(home: Home) -> None:
    """A second lock in one process is refused too, and asking who holds it does not let it go."""
    home.prepare()
    with home.lock():
        assert home.holder() == os.getpid()
        with pytest.raises(Locked, match=f"process {os.getpid()}"), home.lock():
            pass
        assert home.holder() == os.getpid()
        assert stat.S_IMODE(home.lock_file.stat().st_mode) == 0o600


def test_removing_the_file_does_not_let_a_second_daemon_in(home: Home) -> None:
    """Who removes the lock's file to get rid of a lock does not get two daemons in one home."""
    home.prepare()
    with home.lock():
        home.lock_file.unlink()
        with pytest.raises(Locked, match="another process"), home.lock():
            pass
    with home.lock():
        pass


def test_a_child_does_not_inherit_the_lock(home: Home) -> None:
    """A process that was started while the home was held does not hold it, even with every descriptor passed on."""
    home.prepare()
    with home.lock():
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    with child:
        assert home.holder() is None
        with home.lock():
            pass


def test_asking_never_keeps_a_daemon_from_starting(home: Home) -> None:
    """While one process asks who holds the home, again and again, another can always take it."""
    home.prepare()
    with subprocess.Popen([sys.executable, "-c", ASK, str(home.path)], stdout=subprocess.PIPE, cwd=ROOT) as asking:
        try:
            assert asking.stdout is not None
            assert asking.stdout.readline() == b"asking\n"
            for _ in range(2000):
                with home.lock():
                    pass
        finally:
            asking.kill()


@pytest.mark.parametrize("depth", [1, 12])
def test_the_socket_works_however_long_its_path(tmp_path: Path, depth: int) -> None:
    """A socket can be bound and connected to by its address, also below a path that no address can hold."""
    state = tmp_path.joinpath(*["a-rather-long-name"] * depth)
    home = Home(state, state / "queue")
    home.prepare()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        with home.socket_address() as address:
            listener.bind(address)
        listener.listen()
        with home.socket_address() as address:
            assert len(address) < 108
            client.connect(address)
        assert home.socket.is_socket()


def test_a_ticket_has_a_short_directory_of_its_own(home: Home) -> None:
    """Each ticket has the same directory for temporary files at every claim: its owner's alone, and short."""
    home.prepare()
    own = home.make_tmp("a" * 64)
    assert own.parent == home.tmp
    assert len(own.name) == 12
    assert own.stat().st_mode & 0o777 == 0o700
    (own / "socket").touch()
    assert home.make_tmp("a" * 64) == own
    assert (own / "socket").exists()
    assert home.make_tmp("a" * 63) != own


@pytest.mark.parametrize("what", ["link", "file"])
def test_what_an_agent_put_in_the_place_of_its_directory_makes_way(home: Home, what: str) -> None:
    """A symlink or a file there is replaced, and what the symlink names is left alone."""
    home.prepare()
    own = home.tmp_of("t")
    if what == "link":
        own.symlink_to(home.queue)
    else:
        own.write_text("x")
    assert home.make_tmp("t").is_dir()
    assert not own.is_symlink()
    assert home.queue.is_dir()
