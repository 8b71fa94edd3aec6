"""Read, replace and remove files where an agent may have put something else.

Invariant: nothing here waits, and what is read, replaced or removed is never what a symlink at its place names.

Knows the file system; does not know git.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp

_SMALL_BYTES = 16 * 1024 * 1024


def write_whole(path: Path, content: bytes) -> None:
    """Replace `path` in one step, whatever it is, a symlink included."""
    descriptor, new = mkstemp(dir=path.parent, prefix=f".{path.name}.")  # a name that nobody could link elsewhere
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(new).replace(path)


def read_small(path: Path) -> bytes | None:
    """Return what the regular file `path` holds; None for anything else, which an agent may have put there.

    A symlink is not followed, and no open or read can wait: a FIFO would keep us for ever, under our lock.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        is_small = stat.S_ISREG(status.st_mode) and status.st_size <= _SMALL_BYTES
        return os.read(descriptor, status.st_size) if is_small else None
    finally:
        os.close(descriptor)


def everything_in(directory: Path) -> Iterator[Path]:
    """Yield what is below `directory`; what vanishes meanwhile is passed over, and no symlink followed."""
    for root, directories, files in os.walk(directory):
        yield from (Path(root, name) for name in (*directories, *files))


def clear(path: Path) -> None:
    """Remove `path`, whatever it is and whatever may be done to it; a symlink, not what it names.

    What of a directory belongs to another user stays, as a container leaves what it writes.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():  # directories that nobody may write, as the caches of some languages have
            for directory in (path, *everything_in(path)):
                with suppress(OSError):
                    if directory.is_dir() and not directory.is_symlink():
                        directory.chmod(0o700)
            shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(NotADirectoryError):
            path.unlink(missing_ok=True)


def is_plain(path: Path) -> bool:
    """Whether git can read `path` without an end to wait for; a link that names nothing is none of ours."""
    mode = path.stat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
