"""Door to the state directory: what is where in it, whether it is fit, and who holds it.

One daemon holds a home at a time: exclusive locks on a file of its own and on the directory,
which end with its process however that ends. Whether it is held can be asked without taking it.

Knows the file system. Does not know what is in the files.
"""

import errno
import fcntl
import hashlib
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from pwd import getpwuid
from socket import gethostname
from typing import Self

from runner.config import DATABASE_FILE, Config
from runner.errors import ConfigError, Exit, RunnerError
from runner.mounts import MOUNTINFO, network_filesystem

_MAX_SOCKET_ADDRESS = 107  # bytes: sun_path of unix(7) has 108 with its NUL
_TMP_NAME = 12  # hex digits: enough to tell a home's tickets apart
_ELSEWHERE = "choose another directory, or let this user write there"
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of fcntl(2) on 64-bit Linux


class Locked(RunnerError):
    """Another process holds the home."""

    exit_code = Exit.LOCKED

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(path, pid)
        self.path, self.pid = path, pid

    def __str__(self) -> str:
        who = f"process {self.pid}" if self.pid else "another process"
        return (
            f"{self.path} is held by {who}: one daemon at a time; wait for its end or stop it,"
            " or use another state_directory"
        )


@dataclass(frozen=True, slots=True)
class Home:
    """A state directory; `path` and `queue` are absolute."""

    path: Path
    queue: Path
    host: str = ""
    """Given where several hosts share one database."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the state directory of a configuration."""
        shared = not config.database_url.startswith("sqlite:")
        return cls(config.state_directory, config.queue_directory, gethostname() if shared else "")

    @property
    def name(self) -> str:
        """What the database calls this home: no other daemon of that database has the same."""
        return f"{self.host}:{self.path}" if self.host else str(self.path)

    @property
    def database(self) -> Path:
        """The default database."""
        return self.path / DATABASE_FILE

    @property
    def lock_file(self) -> Path:
        """What the daemon holds a lock on; its pid is in it."""
        return self.path / "lock"

    @property
    def socket(self) -> Path:
        """Where the daemon is steered; see `socket_address`."""
        return self.path / "control.sock"

    @property
    def clone(self) -> Path:
        """The repository that worktrees belong to."""
        return self.path / "clone"

    @property
    def worktrees(self) -> Path:
        """One directory per ticket."""
        return self.path / "worktrees"

    @property
    def aside(self) -> Path:
        """What was in the way and is not thrown away."""
        return self.path / "aside"

    @property
    def claude(self) -> Path:
        """CLAUDE_CONFIG_DIR: the transcripts."""
        return self.path / "claude"

    @property
    def user_home(self) -> Path:
        """HOME of agents and commands, so that they meet none of the operator's files."""
        return self.path / "user"

    @property
    def tmp(self) -> Path:
        """For files that nobody misses."""
        return self.path / "tmp"

    @property
    def trash(self) -> Path:
        """What is being removed."""
        return self.path / "trash"

    @property
    def tmp_pattern(self) -> str:
        """What the names in `tmp` look like that `tmp_of` makes."""
        return "[0-9a-f]" * _TMP_NAME

    def tmp_of(self, ticket: str) -> Path:
        """Where a ticket's own such files are; short, since the address of a socket in it has 107 bytes."""
        return self.tmp / hashlib.sha256(ticket.encode()).hexdigest()[:_TMP_NAME]

    def make_tmp(self, ticket: str) -> Path:
        """Make `tmp_of` unless it is there, and return it; what an agent put in its place makes way."""
        path = self.tmp_of(ticket)
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            path.unlink()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def prepare(self, repository: Path | None = None) -> None:
        """Make the directories that are missing, for their owner alone, and check them all.

        Args:
            repository: The user's own checkout, which must not have our files in it.

        Raises:
            ConfigError: A directory is not fit; it says why and what to do.
        """
        directories = (self.path, self.queue, self.worktrees, self.aside, self.claude, self.user_home, self.tmp)
        mountinfo = MOUNTINFO.read_text(errors="surrogateescape")
        for directory in directories:
            if repository is not None and directory.resolve().is_relative_to(repository.resolve()):
                raise ConfigError(
                    f"{directory} is inside the repository {repository}, where agents and git would meet it:"
                    " choose another state_directory or queue_directory"
                )
            if (kind := network_filesystem(mountinfo, directory.resolve())) is not None:
                raise ConfigError(
                    f"{directory} is on a network file system ({kind}), where locks and SQLite lose data:"
                    " choose a directory on a local disk"
                )
            _make(directory)
            if directory != self.queue:  # others may own the queue and put tickets into it
                _demand_own(directory)
            _demand_writable(directory)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the home, or raise `Locked` at once.

        The directory is locked beside the file in it, which people remove to get rid of a lock. The descriptors are
        closed on exec: no child keeps the home held.
        """
        with ExitStack() as stack:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, directory)
            try:
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock())
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.EACCES}:
                    raise
                raise Locked(self.path, _pid_in(descriptor)) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield
            os.ftruncate(descriptor, 0)

    def holder(self) -> int | None:
        """Return the pid of the process that holds the home, 0 when it is not known, None when nobody does.

        Takes nothing, so that it never keeps a daemon from starting (as a trial `flock` would).
        """
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            kind, *_ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _flock()))
            return None if kind == fcntl.F_UNLCK else _pid_in(descriptor) or 0
        finally:
            os.close(descriptor)

    @contextmanager
    def socket_address(self) -> Iterator[str]:
        """Give an address of `socket` to bind or connect to, however long its path; valid inside only."""
        if len(os.fsencode(self.socket)) <= _MAX_SOCKET_ADDRESS:
            yield str(self.socket)
            return
        descriptor = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/{self.socket.name}"
        finally:
            os.close(descriptor)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made: {error.strerror}: {_ELSEWHERE}") from error


def _demand_own(directory: Path) -> None:
    owner = directory.stat().st_uid
    if owner != os.geteuid():
        raise ConfigError(
            f"{directory} belongs to user {_user(owner)} and this is {_user(os.geteuid())}:"
            " run as its owner, or choose another state_directory"
        )


def _user(uid: int) -> str:
    with suppress(KeyError):
        return getpwuid(uid).pw_name
    return str(uid)


def _demand_writable(directory: Path) -> None:
    """Try it: permission bits say nothing of read-only mounts, nor to root."""
    try:
        with tempfile.TemporaryFile(dir=directory, prefix=".probe-"):
            pass
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}: {_ELSEWHERE}") from error


def _flock() -> bytes:
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _pid_in(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None
