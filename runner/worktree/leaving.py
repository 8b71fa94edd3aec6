"""Worktrees of tickets that are over: what would be lost with one, and how it goes.

Invariant: what goes holds nothing that is not also in the repository; anything else is put aside whole, with what git
knows of it, and a note.

Knows worktrees; does not know which are due.
"""

import os
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from runner.worktree.clone import HEADS, checked_sha
from runner.worktree.errors import CommitRefused, GitFailed, RepositoryUnreachable, WorktreeRefused
from runner.worktree.files import write_whole
from runner.worktree.large import Large
from runner.worktree.trees import put_branch_back

_PATHS_SHOWN = 5


class Leaving(Large):
    """Worktrees that nobody works in any more."""

    def holds(self, ticket_id: str, *, delivered: str | None = None, ask: bool = True) -> str | None:
        """Return what would be lost with the ticket's worktree and all that git ignores in it; None for nothing.

        Args:
            ticket_id: Whose.
            delivered: A commit that the origin is known to have had on the ticket's branch. It is asked only for
                commits that are neither in that nor in what was last fetched.
            ask: Ask it; else it counts as unreachable.

        Raises:
            RepositoryDenied, RepositoryUnreachable: It has to be asked, and gave no answer.
            WorktreeLocked: See `unlock`.
        """
        with self._lock:
            try:
                checkout = self.checkout(ticket_id)
                put_branch_back(checkout, tolerant=False)
                head = checkout.git.run("rev-parse", "--verify", "HEAD^{commit}").text
                if uncommitted := self.facts(ticket_id, head).uncommitted:
                    return f"holds uncommitted work: {', '.join(uncommitted[:_PATHS_SHOWN])}"
                self.refuse_lost_modules(checkout)
            except WorktreeRefused as error:
                return error.reason
            except (CommitRefused, GitFailed) as error:
                return f"cannot be read: {error}"
            if delivered is not None and checkout.git.is_ancestor(head, checked_sha(delivered)):
                return None
            if not self._is_at_origin(head):
                if not ask:
                    raise RepositoryUnreachable(self.shown, "it gave no answer just now")
                self._fetch()
                if not self._is_at_origin(head):
                    return f"holds {head}, which is in no branch of {self.shown}"
            return None

    def leave(self, ticket_id: str, room: Path) -> Path:
        """Move the ticket's worktree into the directory `room`, in one step; then `forget` it."""
        target = room / f"worktree-{ticket_id}"
        self.path_of(ticket_id).rename(target)
        return target

    def alone(self) -> AbstractContextManager[object]:
        """Keep others from our copies meanwhile; they may hold them as long as a fetch takes."""
        return self._lock

    def put_aside(self, ticket_id: str, why: str) -> Path:
        """Move a worktree out of the way as it is, with a note, and return where it is now.

        Its branch stays in the clone, and git works in its new place.
        """
        with self._lock:
            path = self.path_of(ticket_id)
            target, admin = self._place_aside(ticket_id), self._registered(path)
            kept = target.with_name(f"{target.name}.git")
            note = f"The worktree of ticket {ticket_id}, which is over. It was not removed: it {why}.\n"
            write_whole(target.with_name(f"{target.name}.txt"), note.encode(errors="replace"))
            if admin is not None:
                self._keep_head(ticket_id, admin)
                write_whole(admin / "commondir", os.fsencode(f"{self.clone_path}\n"))
                write_whole(admin / "gitdir", os.fsencode(f"{target}/.git\n"))
                admin.rename(kept)
                with suppress(OSError):  # a directory, which the agent made
                    write_whole(path / ".git", os.fsencode(f"gitdir: {kept}\n"))
            path.rename(target)
            return target

    def _is_at_origin(self, sha: str) -> bool:
        return bool(self.outbox().ask("for-each-ref", "--count=1", f"--contains={sha}", HEADS).stdout)
