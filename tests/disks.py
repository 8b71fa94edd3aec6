"""What a disk may hold when the power is cut, given what was written and synced until then.

What was written to a file is there for certain once the file was synced, a name once its
directory was. Before that each part of it may be there or not, in any order, down to a
sector: a sector is written whole or not at all, and leaves its neighbours alone.

Knows nothing of databases.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

SECTOR = 512


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a program did, or `ack`: it was told that what it had done is safe."""

    what: str
    """`open`, `write`, `truncate`, `sync`, `unlink`, `sync_names` or `ack`."""
    name: str = ""
    at: int = 0
    """Where it wrote, the new size, or what was acknowledged."""
    data: bytes = b""


class Survives(StrEnum):
    """What of the unsynced is there after the cut."""

    NOTHING = "nothing"
    EVERYTHING = "everything"
    SOME = "some"


@dataclass
class _File:
    synced: bytearray = field(default_factory=bytearray)
    since: list[Step] = field(default_factory=list)
    """Written and not synced."""


@dataclass
class Disk:
    """A directory of files while a program works on it."""

    names: dict[str, _File] = field(default_factory=dict)
    synced_names: dict[str, _File] = field(default_factory=dict)
    acknowledged: int = 0

    def do(self, step: Step) -> None:
        """Go on by a step."""
        match step.what:
            case "open":
                self.names.setdefault(step.name, _File())
            case "write" | "truncate":
                self.names[step.name].since.append(step)
            case "sync":
                file = self.names[step.name]
                for written in file.since:
                    _put(file.synced, written)
                file.since.clear()
            case "unlink":
                del self.names[step.name]
            case "sync_names":
                self.synced_names = dict(self.names)
            case "ack":
                self.acknowledged = step.at
            case other:
                raise ValueError(other)

    def cut(self, survives: Survives, rng: Random) -> Mapping[str, bytes]:
        """Return the files that are there when the power is cut now."""
        names = {
            Survives.NOTHING: self.synced_names,
            Survives.EVERYTHING: self.names,
            Survives.SOME: rng.choice([self.names, self.synced_names]),
        }[survives]
        return {name: _left(file, survives, rng) for name, file in names.items()}


def _left(file: _File, survives: Survives, rng: Random) -> bytes:
    content = bytearray(file.synced)
    share = {Survives.NOTHING: 0.0, Survives.EVERYTHING: 1.0}.get(survives, rng.random())
    for step in file.since:
        for sector in _sectors(step):
            if rng.random() < share:
                _put(content, sector)
    return bytes(content)


def _sectors(step: Step) -> Iterable[Step]:
    """Return the parts of a step of which each is done whole or not at all."""
    if step.what == "truncate":
        return [step]
    starts = [0, *range(-step.at % SECTOR or SECTOR, len(step.data), SECTOR)]
    ends = [*starts[1:], len(step.data)]
    return [Step("write", step.name, step.at + a, step.data[a:b]) for a, b in zip(starts, ends, strict=True)]


def _put(content: bytearray, step: Step) -> None:
    if step.what == "truncate":
        del content[step.at :]
        content.extend(bytes(step.at - len(content)))
        return
    content.extend(bytes(max(step.at - len(content), 0)))
    content[step.at : step.at + len(step.data)] = step.data
