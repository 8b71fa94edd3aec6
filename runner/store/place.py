"""Where a database file may be.

SQLite's locks and its shared memory do not hold on a network file system: corruption
was reported there, so such a place is refused at the start.
"""

import os
from pathlib import Path

from runner.errors import ConfigError

_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = frozenset(
    {
        "9p",
        "afs",
        "ceph",
        "cifs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
    }
)


def prepare(path: Path) -> None:
    """Make the file, for its owner alone, if it is not there.

    Raises:
        ConfigError: It cannot be made, or is on a network file system.
    """
    kind = file_system(path, _MOUNTS.read_text() if _MOUNTS.exists() else "")
    if kind in _NETWORK:
        raise ConfigError(f"{path} is on {kind}, a network file system, where SQLite loses data: use a local disk")
    try:
        # Only a new file is opened: closing any descriptor of the file drops this process's locks on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        path.chmod(0o600)
    except OSError as e:
        raise ConfigError(f"the database {path} cannot be made: {e.strerror}") from e


def file_system(path: Path, mounts: str) -> str | None:
    """Return the kind of file system that `path` is on, by the lines of a `mountinfo`; None if none says."""
    place, best, kind = path.resolve(), -1, None
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        point = Path(mount.split(" ")[4].encode().decode("unicode_escape"))  # a space is \040
        if place.is_relative_to(point) and len(point.parts) >= best:  # the last of several at one point is on top
            best, kind = len(point.parts), source.split(" ")[0]
    return kind
