"""What a backup's file looks like: a gzipped tar of regular files with known names, the manifest first.

    manifest.json            versions, where it was made, the worktrees
    database.sqlite3         a consistent copy; not there for PostgreSQL
    repository.bundle        clone, outbox and the files of worktrees, for `git fetch`
    shallow                  where the history in it ends; empty for a whole one
    transcripts/TICKET/...   what Claude Code wrote
    queue/...                the queue folder

The one invariant: what comes out of a file that anybody may have made lies under the
directory that it was taken out to, and is a regular file.

Knows tar and the manifest; does not know the home.
"""

import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import BadGzipFile
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from runner.errors import RunnerError
from tickets.ticket import id_problem

MANIFEST, DATABASE, BUNDLE, SHALLOW = "manifest.json", "database.sqlite3", "repository.bundle", "shallow"
TRANSCRIPTS, QUEUE = "transcripts", "queue"
_MANIFEST_BYTES = 16 * 1024 * 1024


class NotABackup(RunnerError):
    """A file is no backup, a damaged one, or one that this version cannot read."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(file, why)
        self.file, self.why = file, why

    def __str__(self) -> str:
        return f"{self.file} cannot be restored: {self.why}"


def _ticket_id(text: str) -> str:
    if problem := id_problem(text):
        raise ValueError(problem)
    return text


class Worktree(BaseModel):
    """A worktree in the bundle, as worktree.Saved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ticket: Annotated[str, AfterValidator(_ticket_id)]
    head: Annotated[str, Field(pattern=r"^[0-9a-f]{40,64}$")]
    ref: str | None
    left_out: tuple[str, ...]


class Manifest(BaseModel):
    """What a backup says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1]
    version: str
    """Of ticket-runner."""
    schema_version: str
    made_at_us: int
    host: str
    home: str
    """The state directory that it was made of."""
    home_name: str
    """What the database calls it."""
    repository: str
    database: Literal["sqlite", "postgresql"]
    running: bool
    """A daemon held the home: what was wanted then may have been done since."""
    has_repository: bool
    worktrees: tuple[Worktree, ...]


@contextmanager
def opened(file: Path) -> Iterator[tuple[Manifest, tarfile.TarFile]]:
    """Give a backup's manifest and its members; nothing is taken out yet.

    Raises:
        NotABackup: It is none that can be restored.
    """
    try:
        with tarfile.open(file, "r:gz") as tar:
            yield _manifest(file, tar), tar
    except (tarfile.TarError, EOFError, zlib.error, BadGzipFile) as error:
        raise NotABackup(file, f"it is damaged, or no backup: {error}") from error
    except OSError as error:
        raise RunnerError(f"{error.filename or file}: {error.strerror}") from error


def take_out(tar: tarfile.TarFile, file: Path, directory: Path) -> None:
    """Write all members below `directory`.

    Raises:
        NotABackup: One of them is nothing that a backup has.
    """
    for member in tar:
        parts = PurePosixPath(member.name).parts
        plain = len(parts) == 1 and parts[0] in {MANIFEST, DATABASE, BUNDLE, SHALLOW}
        known = plain or (len(parts) > 1 and parts[0] in {TRANSCRIPTS, QUEUE})
        content = tar.extractfile(member) if member.isreg() and known and ".." not in parts else None
        if content is None:
            raise NotABackup(file, f"no backup has a {member.name!r}")
        path = directory / member.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        with path.open("wb") as out:
            shutil.copyfileobj(content, out)
        os.utime(path, (member.mtime, member.mtime))


def _manifest(file: Path, tar: tarfile.TarFile) -> Manifest:
    first = tar.next()
    content = tar.extractfile(first) if first is not None and first.name == MANIFEST else None
    if content is None:
        raise NotABackup(file, "it is no backup of ticket-runner")
    try:
        return Manifest.model_validate_json(content.read(_MANIFEST_BYTES))
    except ValidationError as error:
        what = ", ".join(".".join(map(str, detail["loc"])) for detail in error.errors(include_input=False))
        raise NotABackup(file, f"its manifest is not one that this version knows (see {what or 'all of it'})") from None
