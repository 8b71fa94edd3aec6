"""Which file systems may hold state: locks and SQLite lose data on one that other machines serve.

A pure function over the text of a mountinfo.
"""

import re
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")

_NETWORK = frozenset(
    {
        "9p", "afs", "afp", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs",
        "nfs", "nfs4", "ocfs2", "orangefs", "prl_fs", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
    }
)  # fmt: skip
_LOCAL_FUSE = frozenset({"fuse.bindfs", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.mergerfs", "fuse.ntfs-3g"})


def network_filesystem(mountinfo: str, path: Path) -> str | None:
    """Return the kind of file system that `path` is on if other machines may serve it, else None.

    Args:
        mountinfo: Text of /proc/self/mountinfo (proc_pid_mountinfo(5)).
        path: Absolute and resolved; it need not exist.
    """
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        mount, separator, source = line.partition(" - ")
        fields = mount.split(" ")
        if not separator or len(fields) < 5:  # noqa: PLR2004  the mount point is the fifth
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]))
        if path.is_relative_to(point) and len(point.parts) >= best:  # a later mount at one point hides an earlier
            best, kind = len(point.parts), source.split(" ")[0]
    is_foreign_fuse = kind.startswith("fuse.") and kind not in _LOCAL_FUSE
    return kind if kind in _NETWORK or is_foreign_fuse else None
