"""See how worktrees and tickets agree, and forget a worktree that is gone.

Invariant: looking changes nothing but what an agent may have put into the clone's own configuration.

Knows the directories and what the clone has registered; does not know what should be there.
"""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from runner.worktree.files import read_small
from runner.worktree.trees import branch_of
from runner.worktree.work import Work


class Place(StrEnum):
    """What is at a ticket's path."""

    THERE = "there"
    """Its worktree."""
    MISSING = "missing"
    """Nothing, and the clone knows of nothing."""
    GONE = "gone"
    """Nothing, and the clone has a worktree registered there."""
    FOREIGN = "foreign"
    """Something else: not registered, or its `.git` is not ours."""


@dataclass(frozen=True)
class Survey:
    """What the clone has."""

    registered: tuple[Path, ...]
    """Paths of worktrees."""
    branches: frozenset[str]
    """Full names."""


class Surveyed(Work):
    """Worktrees as somebody sees them who changes nothing."""

    def survey(self) -> Survey:
        """Return what the clone has; nothing where there is no clone yet."""
        if not self.clone_path.is_dir():
            return Survey((), frozenset())
        paths = (link.parent for _, link in self._registrations())
        names = self.clone().run("for-each-ref", "--format=%(refname)", "refs/heads/").text.splitlines()
        return Survey(tuple(paths), frozenset(names))

    def place(self, ticket_id: str) -> Place:
        """Return what is at the ticket's path."""
        path = self.path_of(ticket_id)
        admin, link = self._registered(path), path / ".git"
        if not path.is_dir() or path.is_symlink():
            there = path.exists() or path.is_symlink()
            return Place.FOREIGN if there else Place.MISSING if admin is None else Place.GONE
        if admin is None or (os.path.lexists(link) and read_small(link) != os.fsencode(f"gitdir: {admin}\n")):
            return Place.FOREIGN
        return Place.THERE

    def forget(self, ticket_id: str) -> bool:
        """Forget the worktree if its directory is gone; a commit that only its HEAD held gets a branch first."""
        with self._lock:
            admin = self._registered(self.path_of(ticket_id))
            if admin is None or self.place(ticket_id) is not Place.GONE:
                return False
            self._unregister(ticket_id, admin)
            return True


def branch_ref(ticket_id: str) -> str:
    """Return the full name of a ticket's branch."""
    return f"refs/heads/{branch_of(ticket_id)}"
