"""Files that git-lfs keeps outside of git: fetched before a ticket is worked on, and sent before its branch.

What talks to the origin is git-lfs in the outbox, as all else; worktrees share what it keeps, in `clone/lfs`, and no
command of ours in a worktree asks the network for more.

Invariant: no branch is pushed before what its pointers name.

Knows worktrees; does not know who wants their files.
"""

from runner.worktree.clone import checked_sha
from runner.worktree.command import Command, has_lfs
from runner.worktree.errors import CommitRefused, GitFailed, RepositoryDenied, RepositoryMissing
from runner.worktree.modules import Modules
from runner.worktree.trees import Checkout

LARGE = "files of git-lfs"
_MISSING = "keeps files with git-lfs, which is not installed here: install it"


class Large(Modules):
    """The large files of a repository."""

    def unfit(self, base_sha: str, *, update: bool) -> str | None:
        """Return why no ticket can be worked on at a commit; see `Modules`. Without git-lfs its files are pointers."""
        known = super().unfit(base_sha, update=update)
        return known or (f"its base {_MISSING}" if not has_lfs() and self._keeps_large(base_sha) else None)

    def fill(self, ticket_id: str, base_sha: str, *, update: bool) -> tuple[str, ...]:
        """Put into a worktree what a checkout leaves out; see `Modules`. `LARGE` is among what is returned."""
        filled = super().fill(ticket_id, base_sha, update=update)
        return (*filled, LARGE) if self.fill_large(self.checkout(ticket_id), base_sha) else filled

    def fill_large(self, checkout: Checkout, base_sha: str) -> bool:
        """Fetch what this commit and the worktree's own name, and put it in the place of pointers there.

        Returns:
            Whether there may be any.

        Raises:
            WorktreeRefused: Some of it cannot be had.
            RepositoryUnreachable: Try again later.
        """
        if not self._keeps_large(base_sha):
            return False
        head = checkout.git.sha("HEAD")
        wanted = {base_sha, head if head is not None and self.outbox().sha(head) else base_sha}
        try:
            with self._lock:
                for sha in sorted(wanted):
                    self._lfs("fetch", "origin", sha)
            checkout.git.run("lfs", "checkout")
        except (GitFailed, RepositoryDenied, RepositoryMissing) as error:
            raise checkout.refused(f"has files of git-lfs that cannot be had: {error}") from error
        return True

    def push_large(self, checkout: Checkout, sha: str) -> None:
        """Send what the pointers of the ticket's branch name, which the outbox has at `sha`; most branches have none.

        Raises:
            CommitRefused: git-lfs is not installed.
            GitFailed, RepositoryDenied, RepositoryUnreachable: The origin does not have it.
        """
        if self._keeps_large(sha):
            if not has_lfs():
                raise CommitRefused(checkout.ticket_id, checkout.path, f"its work {_MISSING}")
            self._lfs("push", "origin", checkout.ref)

    def _keeps_large(self, sha: str) -> bool:
        where = ("--", ":(glob)**/.gitattributes")
        return (
            self.outbox().ask("grep", "--quiet", "--fixed-strings", "filter=lfs", checked_sha(sha), *where).status == 0
        )

    def _lfs(self, *arguments: str) -> None:
        """Run git-lfs in the outbox; it is to find its repository itself, and so is what it starts at the origin."""
        self.outbox().run("config", "lfs.storage", str(self.clone_path / "lfs"))
        command = Command(
            self.shown,
            self.outbox_path,
            self._timeout_s,
            self._outside_env,
            self._secrets,
            outside=True,
            hang_up=self.hang_up,
        )
        self._asked(command, "lfs", *arguments)
