"""Read and move files that other people also write, so that nothing is lost or half seen.

What is read is exactly the file that was looked at; what is written or moved appears
whole, never in place of another file, and is still there after a power cut.

Knows files only.
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

_AT_FDCWD = -100  # linux/fcntl.h
_RENAME_NOREPLACE = 1  # linux/fs.h

_WRITING, _MODE = os.O_WRONLY | os.O_CLOEXEC, 0o666
_NEEDS_A_NAME = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}  # open(2), of O_TMPFILE

Signature = tuple[int, int, int, int]
"""Size, times of change and inode: any write, and any rename, makes another one."""


class Changed(Exception):
    """The file is not what it was when it was looked at."""


def signature_of(status: os.stat_result) -> Signature:
    """Return what tells a file's contents from any earlier ones."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def changed_ns(signature: Signature) -> int:
    """Return when the file was written last."""
    return signature[1]


def read(path: Path, signature: Signature, size: int) -> bytes:
    """Return at most `size` bytes and one more of the file that has `signature`.

    Neither follows a link nor waits for a pipe.

    Raises:
        Changed: It is gone, or does not have `signature` before and after.
        OSError: It cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise Changed from error
    with os.fdopen(descriptor, "rb") as file:
        before = signature_of(os.fstat(descriptor))
        data = file.read(size + 1) if before == signature else b""
        if before != signature or signature_of(os.fstat(descriptor)) != signature:
            raise Changed
    return data


def write_new(path: Path, data: bytes) -> None:
    """Make the file `path`, whole at once; a kill leaves all of it or nothing.

    Its mode is what the umask allows, so that a daemon of another user may read it.

    Raises:
        FileExistsError: There is one, and it stays.
    """
    with told_of(path.parent):
        try:
            descriptor = os.open(path.parent, os.O_TMPFILE | _WRITING, _MODE)
        except OSError as error:
            if error.errno not in _NEEDS_A_NAME:
                raise
            write_and_rename(path, data)
            return
        with os.fdopen(descriptor, "wb") as file:
            _write(file, data)
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)  # link() alone follows no link
        sync(path.parent)


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def write_and_rename(path: Path, data: bytes) -> None:
    """Do as `write_new` where the file system has no files without names; a kill leaves one with a name of ours."""
    temporary = path.parent / f".{token_hex(8)}.tmp"
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | _WRITING, _MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _write(file, data)
        move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def told_of(directory: Path) -> Iterator[None]:
    """Let errors of our own temporary files, whose names begin with a dot in `directory`, name it instead.

    So do errors that name no file, such as that of a full disk.
    """
    try:
        yield
    except OSError as error:
        named = error.filename
        if error.errno is None or (named is not None and not str(named).startswith(f"{directory}/.")):
            raise
        raise OSError(error.errno, error.strerror, str(directory)) from error


def move(source: Path, target: Path) -> None:
    """Rename, never over another file.

    Not `link` and `unlink`: Linux refuses a hard link to another user's file (fs.protected_hardlinks).

    Raises:
        FileExistsError: `target` exists; both stay.
    """
    rename = ctypes.CDLL(None, use_errno=True).renameat2
    if rename(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) != 0:
        number = ctypes.get_errno()
        if number != errno.EINVAL:
            raise OSError(number, os.strerror(number), str(source), None, str(target))
        if os.path.lexists(target):  # a file system without that flag: look, then rename
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        source.rename(target)
    sync(target.parent)
    if source.parent != target.parent:
        sync(source.parent)


def make_directory(path: Path) -> None:
    """Make the directory `path` unless it is there; its parent has to be."""
    if not path.is_dir():
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(directory: Path) -> None:
    """Make what was renamed or made in `directory` last."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
