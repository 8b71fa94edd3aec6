"""Bring into a ticket's branch what its base has got meanwhile.

The merge is made in the ticket's worktree, where all work is committed before. Git writes files first and the commit
last, so a merge that was killed looks like work of the agent. So the outbox has a ref for as long as we merge: whoever
finds it puts the worktree back to the last commit, and what was there aside, as a commit of refs/aside. A merge that
ended in conflicts has no such ref any more: it is the agent's, and is never undone by us.

Knows the base and the worktrees; does not know why a ticket is delivered.
"""

from dataclasses import dataclass

from runner.worktree.clone import Base
from runner.worktree.errors import GitFailed
from runner.worktree.leaving import Leaving
from runner.worktree.modules import changed_links
from runner.worktree.trees import Checkout, base_ref, branch_of, put_branch_back

MERGE_HEAD = "MERGE_HEAD"


@dataclass(frozen=True)
class Merge:
    """A base and the ticket's branch."""

    base: Base
    """As it was just now."""
    sha: str
    """Where the branch is."""
    made: bool = False
    """The base was merged; else the branch had all of it."""
    conflicts: tuple[str, ...] = ()
    """Files that are to be resolved; the branch lacks the base until they are, and the merge is committed."""


class Merges(Leaving):
    """Merges of the base into tickets' branches."""

    def merge_base_into(self, ticket_id: str, base: str | None, message: str, *, update: bool = False) -> Merge:
        """Fetch `base` and merge it; nothing is done when the branch has it. All work must be committed before.

        `update`: submodules are wanted, if it brings the first ones.

        Raises:
            GitFailed: Git cannot merge, for another reason than conflicts; the worktree is as it was.
            WorktreeRefused: HEAD is elsewhere, a rebase is under way, or the base moves checked out submodules.
            BaseMissing, RepositoryDenied, RepositoryUnreachable: See `fetch_base`.
        """
        fresh = self.fetch_base(base)
        checkout = self.checkout(ticket_id)
        put_branch_back(checkout, tolerant=False)
        git, outbox = checkout.git, self.outbox()
        made = not git.is_ancestor(fresh.sha, "HEAD")
        conflicts = self._merge(checkout, fresh, message) if made else ()
        if outbox.sha(base_ref(ticket_id)) != fresh.sha:  # also after a merge that was killed here, or an agent's
            if update:
                self.fill(ticket_id, fresh.sha, update=True)
            else:
                self.fill_large(checkout, fresh.sha)
        head = git.run("rev-parse", "HEAD").text
        if conflicts:
            return Merge(fresh, head, conflicts=conflicts)
        outbox.run("update-ref", base_ref(ticket_id), fresh.sha)
        return Merge(fresh, head, made=made)

    def conflicts(self, ticket_id: str) -> tuple[str, ...]:
        """Return the files of a merge under way that are not resolved; () when there is none."""
        checkout = self.checkout(ticket_id)
        if not (checkout.admin / MERGE_HEAD).exists():
            return ()
        return tuple(checkout.git.run("diff", "--name-only", "--diff-filter=U", "-z", "--no-ext-diff").told_paths)

    def undo_merge(self, ticket_id: str) -> str:
        """Clear away a merge of ours that did not end, and return a note; "" when there is none.

        To be called only when no process of the ticket lives, and before anybody works in its worktree again.
        """
        outbox, ref = self.outbox(), _merging(ticket_id)
        base = outbox.sha(ref)
        if base is None:
            return ""
        checkout = self.checkout(ticket_id)
        git, note = checkout.git, ""
        if git.is_ancestor(base, "HEAD"):
            git.run("merge", "--quit")  # the commit is there: only what git remembers of the merge may be left
        else:
            note = f"a merge of {base} was cut off and is begun anew{self._put_work_aside(checkout)}"
            git.run("reset", "--quiet", "--hard", "HEAD")
            git.run("clean", "--quiet", "--force", "-d")
        outbox.run("update-ref", "-d", ref)
        return note

    def _merge(self, checkout: Checkout, fresh: Base, message: str) -> tuple[str, ...]:
        """Merge, and return what is in conflict."""
        self._refuse_moved_modules(checkout, fresh)
        ticket_id, outbox = checkout.ticket_id, self.outbox()
        outbox.run("update-ref", _merging(ticket_id), fresh.sha)
        words = f"Merge {fresh.name} into {branch_of(ticket_id)}\n\n{message}"
        merge = ("merge", "--quiet", "--no-verify", "--no-stat", "--no-autostash", "-m", words, fresh.sha)
        merged = checkout.git.ask(*merge)
        conflicts = self.conflicts(ticket_id) if merged.status else ()
        if merged.status and not conflicts:
            self.undo_merge(ticket_id)
            raise GitFailed(checkout.git.what, "merge", merged.stderr or f"status {merged.status}")
        outbox.run("update-ref", "-d", _merging(ticket_id))
        return conflicts

    def _refuse_moved_modules(self, checkout: Checkout, fresh: Base) -> None:
        """Refuse a base with other submodules than are checked out: a merge would leave those as they are."""
        fork = checkout.git.ask("merge-base", fresh.sha, "HEAD").text
        if fork and self.has_modules(checkout) and (links := changed_links(checkout.git, fork, fresh.sha)):
            names = ", ".join(sorted(links))
            raise checkout.refused(f"is not merged with {fresh.name}, which moves submodules ({names}): merge by hand")

    def _put_work_aside(self, checkout: Checkout) -> str:
        """Commit what is in the worktree to a ref of its own, and return where that is."""
        with self._snapshot(checkout, self.clone_path / "objects") as (snapshot, _):
            tree = snapshot.run("write-tree").text
        git = checkout.git
        if tree == git.run("rev-parse", "HEAD^{tree}").text:
            return ""
        sha = git.run("commit-tree", tree, "-p", "HEAD", "-m", f"Files of {checkout.ticket_id} in a merge").text
        aside = f"refs/aside/{branch_of(checkout.ticket_id)}-{sha[:12]}"
        git.run("update-ref", aside, sha)
        return f"; what was there is {aside}"


def _merging(ticket_id: str) -> str:
    """Return the outbox's ref that says: we merge this into the ticket's branch just now."""
    return f"refs/merging/{ticket_id}"
