"""Put all that a home knows and cannot make again into one file, while its daemon works.

The database goes first, and names the moment that the backup is of. Everything else only
grows (transcripts, commits) or is written before the database says that it is there
(worktrees, comments), so what is copied after it holds all that it speaks of, and perhaps
more: a session that went on, work that is not logged yet. The next claim finds both. The
other way round the database would speak of sessions and commits that the file has not.

The one invariant: the file is there whole or not at all, and no secret that the environment
names is in its transcripts.

Knows the home, git's bundle and the archive. Does not know how it is restored.
"""

import os
import socket
import stat
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import BinaryIO

from runner import transcript
from runner.archive import BUNDLE, DATABASE, MANIFEST, QUEUE, SHALLOW, TRANSCRIPTS, Manifest, Worktree
from runner.config import Config, credential
from runner.errors import ConfigError, RunnerError
from runner.home import Home
from runner.parts import local_copies
from runner.performers import calls
from runner.redact import Redactor
from runner.store import Store, sessions, sqlite_url, tickets
from runner.store.schema import HEAD
from runner.worktree import Saved
from tickets.files import sync, told_of

_LEVEL = 6
_LINE_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024


def backup(config: Config, file: Path, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Write the backup `file`, which must not exist, and yield what there is to say of it.

    Raises:
        NothingYet: Nothing has run with this configuration.
        GitFailed: The clone cannot be read.
        RunnerError: The file cannot be written, or is there already.
    """
    if os.path.lexists(file):
        raise RunnerError(f"{file} is there already: choose another name")
    try:
        directory = file.absolute().parent
        with told_of(directory), TemporaryDirectory(dir=directory, prefix=f".{file.name}.") as room:
            yield from _made(config, Path(room), secrets_known(config, environ))
            Path(room, "archive").rename(file)
            sync(directory)
    except OSError as error:
        raise RunnerError(f"{error.filename or file}: {error.strerror}") from error
    yield f"wrote {file}, {file.stat().st_size / 1e6:.1f} MB"


def secrets_known(config: Config, environ: Mapping[str, str]) -> Redactor:
    """Return a redactor of the secrets that this environment has."""
    names = {name for call in calls(config).values() for name in call.variables} | {config.git.password_env or ""}
    found = [environ[name] for name in names if name in environ]
    with suppress(ConfigError):
        found.append(credential(config, environ).value)
    return Redactor.of(found)


def _made(config: Config, room: Path, redactor: Redactor) -> Iterator[str]:
    home = Home.of(config)
    if not redactor.secrets:
        yield "no secret is known here: one that an agent has printed is in its transcript, and so in the backup"
    running = home.holder() is not None
    known, has_database, schema_version, made_at_us = _database(config, room / DATABASE)
    if not has_database:
        yield (
            "the database is PostgreSQL and is not in it: dump it with pg_dump BEFORE each backup, and keep both "
            "together; `restore` wants the dump loaded first"
        )
    repository = local_copies(config)
    saved: list[Saved] = []
    has_repository = repository.clone_path.is_dir() and repository.outbox_path.is_dir()
    (room / SHALLOW).write_bytes(repository.shallow())
    if has_repository:
        (room / "git").mkdir()
        saved = repository.bundle(sorted(known), room / BUNDLE, room / "git")
    for each in saved:
        if each.left_out:
            yield f"{each.ticket}: not in it: {', '.join(each.left_out)}"
    manifest = Manifest(
        format=1,
        version=version("ticket-runner"),
        schema_version=schema_version,
        made_at_us=made_at_us,
        host=socket.gethostname(),
        home=str(home.path),
        home_name=home.name,
        repository=repository.shown,
        database="sqlite" if has_database else "postgresql",
        running=running,
        has_repository=has_repository,
        worktrees=tuple(Worktree(ticket=s.ticket, head=s.head, ref=s.ref, left_out=s.left_out) for s in saved),
    )
    (room / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    secrets = [secret.encode() for secret in redactor.secrets]
    with os.fdopen(os.open(room / "archive", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        with tarfile.open(fileobj=out, mode="w:gz", compresslevel=_LEVEL, format=tarfile.PAX_FORMAT) as tar:
            for path in (room / name for name in (MANIFEST, DATABASE, SHALLOW, BUNDLE)):
                if path.exists():
                    _put(tar, path.name, path, room)
            for name, path in _transcripts(home, known):
                _put(tar, name, path, room, secrets)
            for path in _files(home.queue):
                _put(tar, f"{QUEUE}/{path.relative_to(home.queue)}", path, room)
        out.flush()
        os.fsync(out.fileno())


def _database(config: Config, copy: Path) -> tuple[dict[str, list[str]], bool, str, int]:
    """Copy the database; return the ids of its tickets with their sessions, and of what version and time it is."""
    store = Store.open(config.database_url, read_only=True)
    try:
        is_copied = store.copy_to(copy)
        if is_copied:
            store.close()
            store = Store.open(sqlite_url(copy), read_only=True)
        return store.read(
            lambda rx: (
                {
                    row.ticket.id: [session.id for session in sessions.sessions_of(rx, row.ticket.id)]
                    for row in tickets.all_rows(rx)
                    if row.is_of(Home.of(config).name)
                },
                is_copied,
                HEAD,
                rx.now_us,
            )
        )
    finally:
        store.close()


def _transcripts(home: Home, known: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, Path]]:
    """Yield name and path of all that Claude Code wrote in the worktrees of tickets."""
    for ticket, ids in sorted(known.items()):
        tree = home.worktrees / ticket
        places = {transcript.directory(home.claude, tree)}
        places |= {transcript.path(home.claude, tree, session).parent for session in ids}
        for place in sorted(places):
            for path in _files(place):
                yield f"{TRANSCRIPTS}/{ticket}/{path.relative_to(place)}", path


def _files(directory: Path) -> Iterator[Path]:
    """Yield every regular file below; links are not followed, nor kept. Folders come after what is beside them."""
    for place, folders, names in os.walk(directory):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names))


def _put(tar: tarfile.TarFile, name: str, path: Path, room: Path, secrets: Collection[bytes] = ()) -> None:
    """Add a file as long as it is now; it may grow meanwhile, or be gone."""
    try:
        source = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    except OSError:
        if path.is_symlink() or not path.exists():
            return
        raise
    with source, TemporaryFile(dir=room) as whole:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode):
            return
        _copy(source, whole, status.st_size, secrets)
        member = tarfile.TarInfo(name)
        member.size, member.mtime, member.mode = whole.tell(), int(status.st_mtime), 0o600
        whole.seek(0)
        tar.addfile(member, whole)


def _copy(source: BinaryIO, to: BinaryIO, size: int, secrets: Collection[bytes]) -> None:
    """Copy with every secret blotted out; the length stays, since runs know where in a transcript they began."""
    take, most = (source.readline, _LINE_BYTES) if secrets else (source.read, _BLOCK_BYTES)
    while size > 0 and (line := take(min(size, most))):
        size -= len(line)
        for secret in secrets:
            line = line.replace(secret, b"*" * len(secret))
        to.write(line)
