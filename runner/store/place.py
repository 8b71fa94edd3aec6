"""Where a database file may be.

SQLite's locks and its shared memory do not hold on a network file system: corruption
was reported there, so such a place is refused at the start.
"""

import os
from pathlib import Path

from runner.errors import ConfigError
from runner.mounts import MOUNTINFO, network_filesystem


def prepare(path: Path) -> None:
    """Make the file, for its owner alone, if it is not there.

    Raises:
        ConfigError: It cannot be made, or is on a network file system.
    """
    kind = network_filesystem(MOUNTINFO.read_text(errors="surrogateescape"), path.resolve())
    if kind is not None:
        raise ConfigError(f"{path} is on {kind}, a network file system, where SQLite loses data: use a local disk")
    try:
        # Only a new file is opened: closing any descriptor of the file drops this process's locks on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        path.chmod(0o600)
    except OSError as e:
        raise ConfigError(f"the database {path} cannot be made: {e.strerror}") from e
