"""Make a home out of a backup, at any path, so that its tickets go on where they stood.

What names a path is written anew: the home of tickets and epochs, the worktrees, the
directories of transcripts (Claude Code names one after the worktree's path). The daemon
that starts here takes the backup's for dead, so it must be.

The one invariant: only an empty state directory is filled, and the database, without
which nothing starts there, comes last. Does not know how a backup is made.
"""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp

from runner import transcript
from runner.archive import (
    BUNDLE,
    DATABASE,
    QUEUE,
    SHALLOW,
    TRANSCRIPTS,
    Manifest,
    opened,
    take_out,
)
from runner.config import DATABASE_FILE, Config
from runner.errors import ConfigError, RunnerError
from runner.events import Name, Value
from runner.home import Home
from runner.store import Rx, Store, Tx, audit, sqlite_path, sqlite_url, tickets
from runner.worktree import Repository, Saved
from tickets.files import sync, told_of

_NAME_CHARS = 200  # of a project's directory, beyond which Claude Code's name for it is not known
_MADE_BY_CHECK = {"lock"}


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a backup goes."""

    home: Home
    url: str
    """Of the database."""

    @property
    def database(self) -> Path | None:
        """The file, None for PostgreSQL."""
        return sqlite_path(self.url)


def restore(config: Config, file: Path, to: Path | None = None) -> Iterator[str]:
    """Fill the empty state directory of `config`, or `to`, and yield what there is to say.

    Raises:
        NotABackup: The file is none that can be restored.
        RunnerError: The directory is not empty, or what is there of the database does not fit.
        Locked: Another process holds the home.
    """
    target = _target(config, to)
    with opened(file) as (manifest, tar):
        _demand_fit(target, manifest, file)
        _demand_empty(target)
        target.home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with target.home.lock(), told_of(target.home.path):
            room = Path(mkdtemp(dir=target.home.path, prefix=".restore-"))
            try:
                take_out(tar, file, room)
                yield from _filled(config, target, manifest, room)
            finally:
                shutil.rmtree(room, ignore_errors=True)
    yield from _said(config, target, manifest)


def _target(config: Config, to: Path | None) -> _Target:
    if to is None:
        return _Target(Home.of(config), config.database_url)
    path, url = to.expanduser().resolve(), config.database_url
    queue = config.queue_directory
    if queue == config.state_directory / QUEUE:
        queue = path / QUEUE
    if sqlite_path(url) == config.state_directory / DATABASE_FILE:
        url = sqlite_url(path / DATABASE_FILE)
    return _Target(replace(Home.of(config), path=path, queue=queue), url)


def _demand_fit(target: _Target, manifest: Manifest, file: Path) -> None:
    if (target.database is None) != (manifest.database == "postgresql"):
        raise ConfigError(f"{file} is of a {manifest.database} database and database_url is of another kind")
    if len(transcript.directory(target.home.claude, target.home.worktrees / ("x" * 64)).name) >= _NAME_CHARS:
        raise ConfigError(f"{target.home.path}: sessions could not be found at so long a path: choose a shorter one")
    if target.database is None and not _reads(target, audit.has_home, manifest.home_name):
        raise RunnerError(f"the database knows nothing of {manifest.home_name}: load the dump of the same time first")


def _demand_empty(target: _Target) -> None:
    """Refuse what holds anything but the empty directories that a first `init` or `check` makes."""
    places = [path for path in target.home.path.rglob("*") if path.name not in _MADE_BY_CHECK]
    if filled := [path for path in places if not path.is_dir() or path.is_symlink()]:
        raise RunnerError(
            f"{target.home.path} is not empty ({filled[0].name}): a backup goes into an empty state directory only;"
            " move it away, or say --to DIR"
        )
    if target.database is not None and target.database.exists():
        raise RunnerError(f"{target.database} exists: a backup goes to where there is no database")


def _filled(config: Config, target: _Target, manifest: Manifest, room: Path) -> Iterator[str]:
    if target.database is not None:
        _writes(sqlite_url(room / DATABASE), manifest, target.home)
    if manifest.has_repository:
        _unbundle(config, target, manifest, room)
    for of_ticket in (room / TRANSCRIPTS).glob("*/"):
        _move_transcripts(of_ticket, target.home, room)
    for name in ("claude", "worktrees", "clone", "outbox.git", "repository"):
        if (room / name).exists():
            _into(room / name, target.home.path / name)
    yield from _queue(target, room)
    os.sync()  # before the database says that it is there
    if target.database is not None:
        _into(room / DATABASE, target.database)
    else:
        _writes(target.url, manifest, target.home)


def _reads(target: _Target, fn: Callable[[Rx, str], bool], home: str) -> bool:
    store = Store.open(target.url, read_only=True)
    try:
        return store.read(fn, home)
    finally:
        store.close()


def _writes(url: str, manifest: Manifest, home: Home) -> None:
    store = Store.open(url)
    try:
        store.transact(_settle_in, manifest=manifest, home=home)
    finally:
        store.close()


def _settle_in(tx: Tx, *, manifest: Manifest, home: Home) -> None:
    """Let the database belong to its new home."""
    audit.rehome(tx, manifest.home_name, home.name)
    if manifest.running:
        audit.presume_begun(tx, home.name)
    rows = {row.ticket.id: row for row in tickets.all_rows(tx)}
    moved = manifest.home != str(home.path)
    for row in (rows[each.ticket] for each in manifest.worktrees if each.ticket in rows):
        facts: dict[str, Value] = {"branch": row.branch, "base_sha": row.base_sha, "note": "restored", "moved": moved}
        tx.log(row.ticket.id, Name.WORKTREE_MADE, facts)


def _move_transcripts(source: Path, home: Home, room: Path) -> None:
    place = room / "claude" / "projects" / transcript.directory(home.claude, home.worktrees / source.name).name
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    source.rename(place)


def _unbundle(config: Config, target: _Target, manifest: Manifest, room: Path) -> None:
    git = config.git
    repository = Repository(room, config.repository, author_name=git.author_name, author_email=git.author_email)
    saved = [Saved(each.ticket, each.head, each.ref, each.left_out) for each in manifest.worktrees]
    shallow = (room / SHALLOW).read_bytes()
    repository.unbundle(room / BUNDLE, saved, shallow=shallow, final=target.home.path.resolve())
    (room / "repository").write_text(f"{manifest.repository}\n")


def _queue(target: _Target, room: Path) -> Iterator[str]:
    """Put the queue folder where it belongs; one of another place that is in use stays as it is."""
    if not (room / QUEUE).is_dir():
        return
    if target.home.queue.is_dir() and any(target.home.queue.iterdir()):
        yield f"the queue folder {target.home.queue} is in use and stays as it is; the backup's was not restored"
        return
    target.home.queue.parent.mkdir(parents=True, exist_ok=True)
    _into(room / QUEUE, target.home.queue)


def _into(source: Path, place: Path) -> None:
    """Move what is whole to where nothing, or an empty directory, is."""
    with told_of(place.parent):
        try:
            source.rename(place)
        except OSError:  # another file system
            made = place.with_name(f".{place.name}.restored")
            shutil.copytree(source, made, symlinks=True) if source.is_dir() else shutil.copyfile(source, made)
            made.chmod(source.stat().st_mode)
            made.rename(place)
    sync(place.parent)


def _said(config: Config, target: _Target, manifest: Manifest) -> Iterator[str]:
    made_at = datetime.fromtimestamp(manifest.made_at_us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    yield f"restored to {target.home.path}: the backup of {made_at}, of {manifest.home} on {manifest.host}"
    if manifest.home != str(target.home.path):
        yield f"notes and the log keep the words of then: what they have in {manifest.home} is in {target.home.path}"
    if target.home.path != config.state_directory:
        yield f"set state_directory to {target.home.path} before the next start"
    shown = Repository(target.home.path, config.repository, author_name="-", author_email="-").shown
    if manifest.has_repository and shown != manifest.repository:
        note = target.home.path / "repository"
        yield f"it is of {manifest.repository} and `repository` is {shown}: if it has moved, write its place to {note}"
    if manifest.host == socket.gethostname() and Home(Path(manifest.home), Path(manifest.home)).holder() is not None:
        yield f"WARNING: a daemon works in {manifest.home}: stop it before one starts here, or both do the same work"
    elif manifest.running:
        yield "a daemon was at work when the backup was made: see that it is stopped before one starts here"
    yield "next: ticket-runner fsck; ticket-runner start"
