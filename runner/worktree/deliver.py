"""Commit and push: how a ticket's work leaves its worktree.

Invariant: a push is made from the outbox, and what it replaces at the origin is an
ancestor of the commit or a commit of this ticket that we pushed before.

Doing any of it twice is harmless. Knows worktrees; does not know why a ticket is delivered.
"""

from dataclasses import dataclass

from runner.worktree.clone import checked_sha
from runner.worktree.errors import CommitRefused, PushRefused, WorktreeRefused
from runner.worktree.merge import MERGE_HEAD, Merges
from runner.worktree.modules import changed_links, places
from runner.worktree.origin import why
from runner.worktree.trees import Checkout, branch_of, put_branch_back
from runner.worktree.work import add_hidden, as_committed, nested_repositories, put_back

_EDITED = "is a submodule with uncommitted changes, which no commit here can hold: undo them"
_NESTED = "is a repository of its own: remove it or add it to .gitignore"


@dataclass(frozen=True)
class Pushed:
    """A commit that the origin has on the ticket's branch."""

    sha: str
    branch: str


class Repository(Merges):
    """One repository, as the daemon uses it: see the bases for what it is made of."""

    def commit_all(self, ticket_id: str, message: str) -> str | None:
        """Commit what is uncommitted, as our author and without hooks; None if there is nothing.

        A merge under way is concluded with the message that git has for it.

        Raises:
            CommitRefused: Unmerged files, a repository inside the worktree, a file that git cannot read.
            WorktreeRefused: HEAD is elsewhere, with commits that the branch has not; a rebase is under way.
            WorktreeLocked: See `unlock`.
        """
        checkout = self.checkout(ticket_id)
        git = checkout.git
        put_branch_back(checkout, tolerant=False)
        if unmerged := git.run("diff", "--name-only", "--diff-filter=U", "-z", "--no-ext-diff").paths:
            raise _refused(checkout, unmerged, "is not merged: resolve its conflicts")
        if nested := nested_repositories(git):
            raise _refused(checkout, nested, _NESTED)
        spared = as_committed(git)
        if (added := git.ask("add", "--all", "--", ":/")).status:
            raise CommitRefused(ticket_id, checkout.path, added.stderr)
        add_hidden(git, checkout.path)
        put_back(git, spared)
        if edited := self.edited_modules(checkout):
            raise _refused(checkout, edited, _EDITED)
        self._refuse_links(checkout, git.run("write-tree").text)
        merging = (checkout.admin / MERGE_HEAD).exists()
        if not merging and git.ask("diff", "--cached", "--quiet", "--no-ext-diff", "HEAD").status == 0:
            return None
        ours = ("--cleanup=whitespace", "-m", message.replace("\0", " "))
        words = ("--cleanup=strip", "--no-edit") if merging else ours
        git.run("commit", "--quiet", "--no-verify", "--allow-empty-message", *words)
        return git.sha("HEAD")

    def push(self, ticket_id: str) -> Pushed:
        """Bring `ticket/<id>` to the origin; it may be there already.

        Raises:
            CommitRefused: A commit links to a repository, or a commit of one, that nobody but the worktree has.
            PushRefused: The origin's branch holds commits that are not ours, or the origin says no.
            RepositoryUnreachable, RepositoryDenied: Try again later, or with another credential.
        """
        checkout = self.checkout(ticket_id)
        put_branch_back(checkout, tolerant=False)
        ref, branch = checkout.ref, branch_of(ticket_id)
        with self._lock:
            sha = checkout.git.run("rev-parse", "--verify", f"{ref}^{{commit}}").text
            self._refuse_links(checkout, sha)
            self.refuse_unknown_links(checkout, sha)
            outbox = self.outbox()
            outbox.run("fetch", "--quiet", "--no-tags", "--update-shallow", str(self.clone_path), f"+{ref}:{ref}")
            if outbox.sha(ref) != sha:
                raise WorktreeRefused(ticket_id, checkout.path, f"{branch} moves while it is pushed: try again")
            theirs = self._at_origin(ticket_id)
            if theirs == sha:
                return Pushed(sha, branch)
            if theirs and not outbox.is_ancestor(theirs, sha) and not outbox.sha(_pushed(ticket_id, theirs)):
                raise PushRefused(
                    ticket_id, self.shown, f"its {branch} is at {theirs}, which is not ours: merge by hand"
                )
            self.push_large(checkout, sha)
            outbox.run("update-ref", _pushed(ticket_id, sha), sha)  # before: a push that is cut off may have arrived
            self._push(ticket_id, sha, theirs)
            return Pushed(sha, branch)

    def delivered(self, ticket_id: str, sha: str) -> bool:
        """Whether the origin, asked now, has the commit on `ticket/<id>`."""
        with self._lock:
            theirs = self._at_origin(ticket_id)
            if theirs is None or theirs == checked_sha(sha):
                return theirs is not None
            self._fetch()
            return self.outbox().is_ancestor(sha, theirs)

    def _refuse_links(self, checkout: Checkout, tree: str) -> None:
        """Refuse links to nothing: those that the base has not, or at another commit, and .gitmodules does not name."""
        changed = changed_links(checkout.git, self.base_tree(checkout), tree)
        nameless = changed - (places(checkout.git, tree).keys() if changed else set())
        if nameless:
            raise _refused(checkout, sorted(nameless), _NESTED)

    def _push(self, ticket_id: str, sha: str, theirs: str | None) -> None:
        ref = f"refs/heads/{branch_of(ticket_id)}"
        lease = f"--force-with-lease={ref}:{theirs or ''}"  # whatever was decided holds for that commit alone
        result = self._outside(
            self.outbox_path, "push", "--porcelain", "--no-verify", lease, "origin", f"{sha}:{ref}", ok=(0, 1)
        )
        if result.status:
            said = [line for line in result.text.splitlines() if line.startswith("!")]
            if not said:
                raise why(self.shown, "push", result)
            raise PushRefused(ticket_id, self.shown, " ".join([*said, result.stderr]))

    def _at_origin(self, ticket_id: str) -> str | None:
        ref = f"refs/heads/{branch_of(ticket_id)}"
        listing = self._outside(self.outbox_path, "ls-remote", "origin", ref).text
        return next(
            (sha for sha, _, name in (line.partition("\t") for line in listing.splitlines()) if name == ref), None
        )


def _pushed(ticket_id: str, sha: str) -> str:
    """Return the outbox's ref that says: this commit is ours, and may be at the origin."""
    return f"refs/pushed/{ticket_id}/{sha}"


def _refused(checkout: Checkout, names: list[str], reason: str) -> CommitRefused:
    return CommitRefused(checkout.ticket_id, checkout.path / names[0], reason)
