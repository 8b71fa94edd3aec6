"""Door to the machine: what room is left on the disk of the home, and in memory.

Invariant: what cannot be read is no shortage, so that an odd machine stops no queue.

Knows /proc and control groups; does not know what is started, or when.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import ByteSize

from runner.config import Config, Machine

_KIB = 1024
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True, slots=True)
class Room:
    """What is free; None for what is not known."""

    disk_bytes: int | None
    """For a user who is not root."""
    disk_files: int | None
    """How many more the file system can hold; None also where it has no such limit."""
    memory_bytes: int | None
    """Without swapping: of the machine, or of the control group that has less."""


def look(home: Path, *, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Room:
    """Return what room there is now for something that works in `home`."""
    known = [free for free in (_available(proc), *_left_in_cgroups(proc, cgroups)) if free is not None]
    return Room(*_free(home), min(known, default=None))


def shortage(room: Room, floors: Machine) -> str | None:
    """Return which floor the machine is below and what to do, None when it is below none; 0 is no floor."""
    make_room = "make room (`ticket-runner disk` shows what the state directory holds)"
    said = []
    if room.disk_bytes is not None and room.disk_bytes < floors.min_free_disk:
        said.append(
            f"{shown(room.disk_bytes)} of the disk are free and machine.min_free_disk is"
            f" {shown(floors.min_free_disk)}: {make_room}"
        )
    if room.disk_files is not None and room.disk_files < floors.min_free_files:
        said.append(
            f"the disk can hold {room.disk_files} more files and machine.min_free_files is"
            f" {floors.min_free_files}: {make_room}"
        )
    if room.memory_bytes is not None and room.memory_bytes < floors.min_free_memory:
        said.append(
            f"{shown(room.memory_bytes)} of memory are free and machine.min_free_memory is"
            f" {shown(floors.min_free_memory)}: end something, or lower `concurrency`"
        )
    return "; ".join(said) or None


def short(config: Config) -> str | None:
    """Return which floor of the configuration the machine is below now and what to do, None when it is below none."""
    return shortage(look(config.state_directory), config.machine)


def shown(size_bytes: int) -> str:
    """Return a size for a person."""
    return ByteSize(size_bytes).human_readable(separator=" ")


def _free(place: Path) -> tuple[int | None, int | None]:
    """Return how many bytes and files more there may be; a file system that counts no files says that it has none."""
    with suppress(OSError):
        told = os.statvfs(place)
        return told.f_bavail * told.f_frsize, told.f_favail if told.f_files else None
    return None, None


def _available(proc: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.removesuffix("kB")) * _KIB
    return None


def _left_in_cgroups(proc: Path, cgroups: Path) -> Iterator[int | None]:
    """Yield what our control group and those around it leave us; in a container some of them cannot be seen."""
    with suppress(OSError, ValueError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            top, names = (cgroups / "memory", _V1) if controllers else (cgroups, _V2)
            inside = PurePosixPath(path.removeprefix("/"))
            for place in (inside, *inside.parents):
                if ".." not in place.parts:
                    yield _left(top / place, *names)


def _left(cgroup: Path, limit: str, usage: str, cache: str) -> int | None:
    """Return what may still be used of a limit; files that nobody uses now are given up for it."""
    with suppress(OSError, ValueError):
        at_most, used = int((cgroup / limit).read_text()), int((cgroup / usage).read_text())
        pairs = (line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        given_up = next((int(value) for name, value in pairs if name == cache), 0)
        return max(at_most - used + given_up, 0)
    return None
