"""A small workload on a real store, and everything that its SQLite did to the disk meanwhile.

`python -m tests.recording` replaces, in its own process, entries of the table through
which SQLite reaches the operating system; each replacement takes a note and calls the
original. It is the very library that the store uses, through Python's own module.
"""

import _sqlite3
import argparse
import ctypes
import hashlib
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from runner.budget import Cost, CostKind
from runner.events import Name
from runner.outcome import Outcome
from runner.session import Kind
from runner.store import Rx, Store, Tx, claims, effects, queue, runs, sessions, sqlite_url, tickets
from runner.store.effects import EffectState, Wish
from tests.disks import Step
from tickets.ticket import Finished, Spec

_P, _I, _L, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_OPEN = ctypes.CFUNCTYPE(_I, _P, _P, _P, _I, _P)  # the name by its address: SQLite keeps that
_DELETE = ctypes.CFUNCTYPE(_I, _P, _P, _I)
_WRITE = ctypes.CFUNCTYPE(_I, _P, _P, _I, _L)
_TRUNCATE = ctypes.CFUNCTYPE(_I, _P, _L)
_SYNC = ctypes.CFUNCTYPE(_I, _P, _I)
_OPEN_DIRECTORY = ctypes.CFUNCTYPE(_I, _P, _P)
_SET_CALL = ctypes.CFUNCTYPE(_I, _P, _S, _P)
_GET_CALL = ctypes.CFUNCTYPE(_P, _P, _S)


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs` of sqlite3.h, version 3."""

    _fields_ = (  # type: ignore[mutable-override]  # the way of ctypes' manual
        ("version", _I),
        ("file_bytes", _I),
        ("max_path", _I),
        ("next", _P),
        ("name", _S),
        ("data", _P),
        ("open", _P),
        ("delete", _P),
        ("others", _P * 10),
        ("current_time_int64", _P),
        ("set_system_call", _P),
        ("get_system_call", _P),
        ("next_system_call", _P),
    )


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods` of sqlite3.h, version 3."""

    _fields_ = (  # type: ignore[mutable-override]  # the way of ctypes' manual
        ("version", _I),
        ("close", _P),
        ("read", _P),
        ("write", _P),
        ("truncate", _P),
        ("sync", _P),
        ("others", _P * 13),
    )


def can_record() -> bool:
    """Say whether this Python's SQLite shows the table: one that is linked into the interpreter may not."""
    return hasattr(_library(), "sqlite3_vfs_find")


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(getattr(_sqlite3, "__file__", None))


class Recorder:
    """Takes note of what SQLite does to files from now on, for the rest of this process."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._names: dict[int, str] = {}
        self._kept: list[object] = []
        """What C points to."""
        library = _library()
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        self._vfs = library.sqlite3_vfs_find(None)
        self._methods: dict[int, _Methods] = {}
        self._replace_opening()

    def _keep(self, function: "ctypes._FuncPointer") -> int | None:
        self._kept.append(function)
        return ctypes.cast(function, _P).value

    def _replace_opening(self) -> None:
        vfs = self._vfs.contents
        open_, delete = _OPEN(vfs.open), _DELETE(vfs.delete)
        get_call, set_call = _GET_CALL(vfs.get_system_call), _SET_CALL(vfs.set_system_call)
        open_directory = _OPEN_DIRECTORY(get_call(ctypes.addressof(vfs), b"openDirectory"))

        def opened(vfs: int, name: int | None, file: int, flags: int, out: int | None) -> int:
            code = int(open_(vfs, name, file, flags, out))
            if code == 0 and name is not None:
                self._names[file] = _file_name(name)
                self._note("open", file)
                methods = ctypes.cast(file, ctypes.POINTER(ctypes.POINTER(_Methods)))
                methods[0] = self._noting(methods[0].contents)
            return code

        def deleted(vfs: int, name: int, sync: int) -> int:
            code = int(delete(vfs, name, sync))
            if code == 0:
                self.steps.append(Step("unlink", _file_name(name)))
                self.steps += [Step("sync_names")] * bool(sync)
            return code

        def directory_opened(name: int, descriptor: int) -> int:
            code = int(open_directory(name, descriptor))
            if code == 0:  # SQLite opens a directory for nothing but to sync it
                self.steps.append(Step("sync_names"))
            return code

        vfs.open, vfs.delete = self._keep(_OPEN(opened)), self._keep(_DELETE(deleted))
        set_call(ctypes.addressof(vfs), b"openDirectory", self._keep(_OPEN_DIRECTORY(directory_opened)))

    def _noting(self, original: _Methods) -> "ctypes._Pointer[_Methods]":
        """Return methods that take a note and call the original ones; one copy for each table of SQLite's."""
        at = ctypes.addressof(original)
        if at not in self._methods:
            self._methods[at] = self._copy(original)
        return ctypes.pointer(self._methods[at])

    def _copy(self, original: _Methods) -> _Methods:
        copy = _Methods.from_buffer_copy(original)
        write, truncate, sync = _WRITE(original.write), _TRUNCATE(original.truncate), _SYNC(original.sync)

        def written(file: int, data: int, size: int, at: int) -> int:
            self._note("write", file, at, ctypes.string_at(data, size))
            return int(write(file, data, size, at))

        def truncated(file: int, size: int) -> int:
            self._note("truncate", file, size)
            return int(truncate(file, size))

        def synced(file: int, flags: int) -> int:
            code = int(sync(file, flags))
            if code == 0:
                self._note("sync", file)
            return code

        copy.write, copy.truncate = self._keep(_WRITE(written)), self._keep(_TRUNCATE(truncated))
        copy.sync = self._keep(_SYNC(synced))
        return copy

    def _note(self, what: str, file: int, at: int = 0, data: bytes = b"") -> None:
        self.steps.append(Step(what, self._names[file], at, data))


def _file_name(address: int) -> str:
    return Path(ctypes.string_at(address).decode()).name


def fingerprint(database: sqlite3.Connection) -> str:
    """Return what two databases share that hold the same."""
    return hashlib.sha256("\n".join(database.iterdump()).encode()).hexdigest()


def workload(store: Store, numbers: range) -> Iterator[None]:
    """Do what a daemon does with a few tickets, a transaction at a time."""
    epoch = store.transact(queue.begin_epoch, "host", "home", 1)
    yield
    for number in numbers:
        ticket = f"t{number}"
        yield from _done(store, tickets.take_in, "folder", Spec(ticket, "text " * 2_000))
        yield from _done(store, claims.take_next, epoch=epoch, home="home", lease_s=60)
        yield from _done(store, _begin, ticket)
        for step in range(4):
            yield from _done(store, Tx.log, ticket, Name.TOOL_STARTED, run=f"{ticket}/1", summary="x" * 3_000, n=step)
            yield from _done(store, claims.renew, ticket, 1, 60)
        wish = Wish(f"{ticket}/deploy", ticket, 1, "deploy", "deploy", {"text": "y" * 5_000})
        yield from _done(store, effects.want, wish, limit=None)
        row = store.transact(effects.claim, wish.key, epoch=epoch)
        yield
        assert row is not None
        yield from _done(store, effects.settle, row, EffectState.DONE, "there")
        cost = Cost(1_000 * number, CostKind.MEASURED)
        yield from _done(store, runs.end_run, f"{ticket}/1", outcome=Outcome.FINISHED, cost=cost)
        yield from _done(store, tickets.apply, ticket, Finished(1))
    yield from _done(store, queue.end_epoch, epoch)


def _done(store: Store, fn: Callable[..., object], *args: object, **kwargs: object) -> Iterator[None]:
    store.transact(fn, *args, **kwargs)
    yield


def _begin(tx: Tx, ticket: str) -> None:
    sessions.open_session(tx, ticket, 1, session=f"{ticket}-1", generation=1, prompt_sha="sha")
    runs.begin_run(
        tx,
        ticket=ticket,
        token=1,
        session=f"{ticket}-1",
        kind=Kind.FIRST,
        carried_microusd=0,
        transcript_bytes=0,
        allowance_microusd=1_000_000,
    )


def main() -> None:
    """Do the workload in two starts, and print the steps and what the database held after each acknowledgement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pragma", action="append", default=["wal_autocheckpoint=12"])  # pages: many checkpoints
    told = parser.parse_args()
    recorder, held = Recorder(), [fingerprint(sqlite3.connect(":memory:"))]
    url = sqlite_url(told.directory / "db")

    def look(rx: Rx) -> str:
        database = rx.connection.connection.driver_connection
        assert isinstance(database, sqlite3.Connection)
        return fingerprint(database)

    def acknowledge() -> None:
        recorder.steps.append(Step("ack", at=len(held)))
        held.append(store.read(look))

    for numbers in (range(3), range(3, 5)):
        store = Store.open(url)
        assert store._writer is not None
        writer = store._writer.raw_connection()
        for pragma in told.pragma:
            writer.cursor().execute(f"PRAGMA {pragma}")
        writer.close()
        acknowledge()
        for _ in workload(store, numbers):
            acknowledge()
        store.close()
    steps = [(step.what, step.name, step.at, step.data.hex()) for step in recorder.steps]
    json.dump({"steps": steps, "held": held}, sys.stdout)


if __name__ == "__main__":
    main()
