"""The room that the machine has: read from what the kernel says, in each of the forms in which it says it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ByteSize

from runner import machine
from runner.config import Machine
from runner.machine import Room

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def floors(disk: int, files: int, memory: int) -> Machine:
    """Return floors."""
    return Machine(min_free_disk=ByteSize(disk), min_free_files=files, min_free_memory=ByteSize(memory))


def kernel(place: Path, available_kib: int | None, cgroup: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Lay out what a kernel says, and return its /proc and its control groups."""
    proc, cgroups = place / "proc", place / "cgroup"
    (proc / "self").mkdir(parents=True)
    cgroups.mkdir()
    said = "" if available_kib is None else f"MemAvailable: {available_kib:>10} kB\n"
    (proc / "meminfo").write_text(f"MemTotal:       99999999 kB\n{said}")
    (proc / "self/cgroup").write_text(cgroup)
    for name, content in files.items():
        path = cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return proc, cgroups


def memory(place: Path, available_kib: int | None, cgroup: str, files: dict[str, str]) -> int | None:
    """Return the free memory that is found."""
    proc, cgroups = kernel(place, available_kib, cgroup, files)
    return machine.look(place, proc=proc, cgroups=cgroups).memory_bytes


def test_this_machine_has_room() -> None:
    """On a real kernel both numbers are known, and the disk's is what its file system says."""
    room = machine.look(Path("/"))
    status = os.statvfs("/")
    assert room.disk_bytes is not None
    assert abs(room.disk_bytes - status.f_bavail * status.f_frsize) < GIB
    assert room.memory_bytes is not None
    assert room.memory_bytes > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_small_disk_is_seen_as_it_fills(tmp_path: Path) -> None:
    """The free bytes are those of the file system that the home is on, and so is how many more files it can hold."""
    told = (
        "import sys; from pathlib import Path; from runner import machine; home = Path(sys.argv[1]);"
        " before = machine.look(home); (home / 'x').write_bytes(bytes(4 << 20)); after = machine.look(home);"
        " print(before.disk_bytes, after.disk_bytes, before.disk_files, after.disk_files)"
    )
    script = f'mount -t tmpfs -o size=16m,nr_inodes=9 tmpfs {tmp_path} && {sys.executable} -c "$0" {tmp_path}'
    shown = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, told], capture_output=True, text=True, check=False
    )
    if "unshare failed" in shown.stderr or "mount" in shown.stderr:
        pytest.skip("this machine lets nobody mount")
    assert [*map(int, shown.stdout.split())] == [16 * MIB, 12 * MIB, 8, 7]


def test_without_groups_it_is_what_the_machine_has(tmp_path: Path) -> None:
    """Where no control group has a limit, what is available to the machine counts."""
    files = {"a/b/memory.max": "max\n", "a/b/memory.current": "1\n", "a/b/memory.stat": "inactive_file 0\n"}
    assert memory(tmp_path, 5, "0::/a/b\n", files) == 5 * KIB


def test_the_narrowest_group_counts(tmp_path: Path) -> None:
    """A limit around our own group counts, and files in memory that nobody uses are room."""
    files = {
        "a/memory.max": f"{100 * MIB}\n",
        "a/memory.current": f"{90 * MIB}\n",
        "a/memory.stat": f"anon 5\ninactive_file {20 * MIB}\nactive_file 3\n",
        "a/b/memory.max": f"{200 * MIB}\n",
        "a/b/memory.current": f"{80 * MIB}\n",
        "a/b/memory.stat": "inactive_file 0\n",
    }
    assert memory(tmp_path, GIB // KIB, "0::/a/b\n", files) == 30 * MIB


def test_a_container_sees_its_limit_at_the_top(tmp_path: Path) -> None:
    """Where the path of the group is not to be seen, what is mounted in its place has the limit."""
    files = {"memory.max": f"{64 * MIB}\n", "memory.current": f"{70 * MIB}\n", "memory.stat": ""}
    assert memory(tmp_path, GIB // KIB, "0::/../kubepods/pod1\n", files) == 0


def test_groups_of_the_first_kind(tmp_path: Path) -> None:
    """The older control groups are read as well, under their names."""
    files = {
        "memory/x/memory.limit_in_bytes": f"{50 * MIB}\n",
        "memory/x/memory.usage_in_bytes": f"{30 * MIB}\n",
        "memory/x/memory.stat": f"total_inactive_file {5 * MIB}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": "1\n",
        "memory/memory.stat": "",
    }
    assert memory(tmp_path, GIB // KIB, "5:cpu,cpuacct:/y\n4:memory:/x\n0::/\n", files) == 25 * MIB


def test_what_cannot_be_read_is_no_shortage(tmp_path: Path) -> None:
    """A kernel that says nothing, or nothing that is understood, leaves the number unknown and stops nothing."""
    assert memory(tmp_path, None, "garbage\n", {}) is None
    unknown = machine.look(tmp_path / "nowhere", proc=tmp_path, cgroups=tmp_path)
    assert unknown == Room(None, None, None)
    assert machine.shortage(unknown, floors(1 << 60, 1 << 60, 1 << 60)) is None


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (Room(2 * GIB, 20_000, GIB), []),
        (Room(GIB, 10_000, 512 * MIB), []),
        (Room(GIB - 1, None, GIB), ["1024.0 MiB of the disk are free and machine.min_free_disk is 1.0 GiB"]),
        (Room(GIB, 9_999, GIB), ["the disk can hold 9999 more files and machine.min_free_files is 10000"]),
        (Room(GIB, None, MIB), ["1.0 MiB of memory are free and machine.min_free_memory is 512.0 MiB"]),
        (Room(0, 0, 0), ["machine.min_free_disk", "machine.min_free_files", "machine.min_free_memory"]),
    ],
)
def test_a_floor_is_named_with_both_numbers(room: Room, said: list[str]) -> None:
    """What is below a floor is said with its key; exactly on it is enough, and these are the floors by default."""
    words = machine.shortage(room, Machine())
    assert (words is None) == (not said)
    assert all(part in (words or "") for part in said)


def test_no_floor_is_never_undercut() -> None:
    """A floor of 0 is none."""
    assert machine.shortage(Room(0, 0, 0), floors(0, 0, 0)) is None
