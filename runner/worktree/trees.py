"""Make and reuse the worktree of a ticket, at its fixed path on `ticket/<id>`.

Invariant: what is found at a ticket's path is either proved to be that worktree, or moved
aside, or refused; nothing in it is deleted, and no commit becomes unreachable.

What an agent may have written into the worktree's `.git` is checked, and git is told its
directories and does not search them. Knows the clone; does not know what the work is.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from runner.worktree.clone import HEADS, TICKETS, Base, Clone, checked_sha
from runner.worktree.command import Command
from runner.worktree.errors import BranchInTheWay, WorktreeRefused
from runner.worktree.files import clear, everything_in, is_plain, read_small

_TICKET_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STUCK = {"rebase-merge": "a rebase", "rebase-apply": "a rebase", "BISECT_LOG": "a bisection"}
_SHARED_LOCK_S = 600.0  # git holds these for milliseconds; other tickets' agents may hold one now


@dataclass(frozen=True)
class Tree:
    """A worktree that is ready for its ticket; `note` says what a person or agent may want to know of it."""

    path: Path
    branch: str
    base_sha: str
    made: bool
    note: str


@dataclass(frozen=True)
class Checkout:
    """A worktree that was proved to be the ticket's: its directory, what the clone keeps of it, git in it."""

    ticket_id: str
    path: Path
    admin: Path
    git: Command

    @property
    def ref(self) -> str:
        """The full name of the ticket's branch."""
        return f"refs/heads/{branch_of(self.ticket_id)}"

    def refused(self, reason: str) -> WorktreeRefused:
        """Return the error that says why this worktree cannot be used."""
        return WorktreeRefused(self.ticket_id, self.path, reason)


class Trees(Clone):
    """The worktrees of a clone."""

    def ensure(self, ticket_id: str, base: str | None, *, base_sha: str | None) -> Tree:
        """Return the ticket's worktree, made if it is not there.

        An existing one is left as it is, but for HEAD when that is elsewhere than on the branch and nothing is
        lost. A new one continues `ticket/<id>` where the clone or the origin has it with work of its own, else
        starts at `base_sha` (as recorded), else at the freshly fetched `base`. Without a `base_sha` there was no
        work, so a branch that only the clone has is some agent's, and is kept under refs/aside.

        Raises:
            WorktreeRefused: The path holds something else, or HEAD has commits that the branch has not.
            BranchInTheWay: Its branch could never be pushed.
            BaseMissing, RepositoryUnreachable, ...: As `fetch_base`; as the one before only when it has to be made.
        """
        with self._lock:
            tree = self._ensure(ticket_id, base, base_sha)
            self.outbox().ask("update-ref", base_ref(ticket_id), tree.base_sha)  # and kept from gc for `instructions`
            return tree

    def _ensure(self, ticket_id: str, base: str | None, base_sha: str | None) -> Tree:
        path = self.path_of(ticket_id)
        self._refuse_symlinks(ticket_id)
        admin, notes = self._registered(path), []
        if admin is None or _half_made(admin):
            if path.exists():
                self._refuse_other_repository(ticket_id)
                notes.append(f"what was at its path is now {self._move_aside(ticket_id)}")
            if admin is not None:
                self._unregister(ticket_id, admin)
        elif path.exists():
            checkout = self.checkout(ticket_id)
            note = put_branch_back(checkout, tolerant=True)
            base_sha = base_sha or self._fork(self.fetch_base(base), checkout.ref)
            return Tree(path, branch_of(ticket_id), base_sha, made=False, note=note)
        else:
            self._unregister(ticket_id, admin)
            notes.append("its directory was gone: uncommitted work is lost, commits are not")
        made_from, note = self._make(ticket_id, base, base_sha)
        return Tree(path, branch_of(ticket_id), made_from, made=True, note="; ".join(filter(None, [*notes, note])))

    def unlock(self, ticket_id: str) -> tuple[Path, ...]:
        """Remove what is in the way of this ticket's git, and return it: lock files, and what no git makes.

        To be called only when no process of the ticket lives. Locks that all tickets share go only when they are
        ten minutes old.
        """
        admin = self._registered(self.path_of(ticket_id))
        own = self.clone_path / f"refs/heads/{branch_of(ticket_id)}.lock"
        removed = []
        for path in everything_in(self.clone_path):
            with suppress(OSError):  # another git's, done by now
                if path.suffix == ".lock":
                    within = path.parent.relative_to(self.clone_path)
                    shared = within == Path() or within.is_relative_to("refs/remotes")
                    old = shared and time.time() - path.lstat().st_mtime > _SHARED_LOCK_S
                    in_the_way = old or path == own or path.parent == admin
                else:
                    in_the_way = not is_plain(path)
                if in_the_way:
                    clear(path)
                    removed.append(path)
        return tuple(removed)

    def path_of(self, ticket_id: str) -> Path:
        """Return where the ticket's worktree is, always.

        Raises:
            ValueError: The id could leave the directory or is no part of a branch's name.
        """
        if not _TICKET_ID.fullmatch(ticket_id) or ".." in ticket_id or ticket_id.endswith((".", ".lock")):
            raise ValueError(f"{ticket_id!r} is not a ticket id")
        return self.state / "worktrees" / ticket_id

    def checkout(self, ticket_id: str) -> Checkout:
        """Return the ticket's worktree, proved to be it.

        Raises:
            WorktreeRefused: It is missing, not registered in the clone, or its `.git` names something else.
        """
        path = self.path_of(ticket_id)
        self._refuse_symlinks(ticket_id)
        admin = self._registered(path)
        if admin is None or not path.is_dir():
            raise WorktreeRefused(ticket_id, path, "is not a worktree: it is made at the ticket's next claim")
        self._restore(self.clone_path)
        link = path / ".git"
        if not os.path.lexists(link):
            link.write_text(f"gitdir: {admin}\n")
        elif read_small(link) != os.fsencode(f"gitdir: {admin}\n"):
            raise WorktreeRefused(
                ticket_id, path, "has a .git that is not ours: put the worktree's own back, or move it"
            )
        clear(admin / "config.worktree")
        return Checkout(ticket_id, path, admin, self._tree_command(ticket_id, path, admin))

    def _tree_command(self, ticket_id: str, path: Path, admin: Path) -> Command:
        return self._command(path, f"ticket {ticket_id}").with_environment(
            GIT_DIR=str(admin), GIT_COMMON_DIR=str(self.clone_path), GIT_WORK_TREE=str(path)
        )

    def _registered(self, path: Path) -> Path | None:
        """Return the clone's directory about the worktree at `path`: git chooses its name, the link back is in it."""
        return next((admin for admin, link in self._registrations() if link == path / ".git"), None)

    def _registrations(self) -> Iterator[tuple[Path, Path]]:
        """Yield the clone's directory about each worktree with the link back: other gits make and remove them."""
        for name in sorted(glob("worktrees/*/gitdir", root_dir=self.clone_path)):  # noqa: PTH207  Path.glob fails on what vanishes
            link = self.clone_path / name
            if (content := read_small(link)) is not None:
                yield link.parent, Path(os.fsdecode(content.rstrip(b"\n")))

    def _refuse_symlinks(self, ticket_id: str) -> None:
        path = self.path_of(ticket_id)
        for place in (path, path.parent):
            if place.is_symlink():
                raise WorktreeRefused(ticket_id, place, "is a symlink: remove it")

    def _refuse_other_repository(self, ticket_id: str) -> None:
        path = self.path_of(ticket_id)
        link = path / ".git"
        if not os.path.lexists(link):
            return
        ours = f"gitdir: {self.clone_path}/worktrees/".encode()
        if not (read_small(link) or b"").startswith(ours):
            raise WorktreeRefused(ticket_id, path, "is a checkout of another repository: move it elsewhere")

    def _move_aside(self, ticket_id: str) -> Path:
        target = self._place_aside(ticket_id)
        self.path_of(ticket_id).rename(target)
        return target

    def _place_aside(self, ticket_id: str) -> Path:
        """Return a path below `aside/` at which nothing is, nor beside it with another ending."""
        aside = self.state / "aside"
        aside.mkdir(exist_ok=True)
        taken = {place.name.removesuffix(".txt").removesuffix(".git") for place in aside.iterdir()}
        return next(aside / name for n in range(1, 1 << 20) if (name := f"{ticket_id}-{n}") not in taken)

    def _unregister(self, ticket_id: str, admin: Path) -> None:
        """Forget a worktree whose directory is gone; a commit that only its HEAD held gets a branch first."""
        self._keep_head(ticket_id, admin)
        self.clone().run("worktree", "remove", "--force", "--force", str(self.path_of(ticket_id)))

    def _keep_head(self, ticket_id: str, admin: Path) -> None:
        """Give a commit that only the HEAD of a worktree holds a branch."""
        git, ref = self.clone(), f"refs/heads/{branch_of(ticket_id)}"
        inside = git.with_environment(GIT_DIR=str(admin), GIT_COMMON_DIR=str(self.clone_path))
        head, tip = inside.sha("HEAD"), git.sha(ref)
        if head and not (tip and git.is_ancestor(head, tip)):
            safe = ref if tip is None or git.is_ancestor(tip, head) else f"refs/heads/aside/{ticket_id}-{head[:12]}"
            git.run("update-ref", safe, head)

    def _make(self, ticket_id: str, base: str | None, base_sha: str | None) -> tuple[str, str]:
        """Add the worktree; return the commit its work is compared with, and a note."""
        branch, path = branch_of(ticket_id), self.path_of(ticket_id)
        add = ("worktree", "add", "--quiet", "--force")  # even if another agent has the branch checked out
        path.parent.mkdir(exist_ok=True)
        git, ref, note = self.clone(), f"refs/heads/{branch}", f"it continues {branch} as it was"
        if base_sha and git.sha(ref):
            git.run(*add, str(path), branch)
            return base_sha, note
        fresh = self.fetch_base(base)
        if below := self.outbox().run("for-each-ref", "--count=1", "--format=%(refname)", f"{HEADS}{branch}/").text:
            raise BranchInTheWay(self.shown, below.removeprefix(HEADS), branch)
        asides = "" if base_sha else self._put_foreign_aside(branch)
        if git.sha(ref):
            git.run(*add, str(path), branch)
            return self._fork(fresh, ref), f"{asides}{note}"
        start = checked_sha(base_sha) if base_sha else fresh.sha
        if git.sha(start) is None:
            raise WorktreeRefused(ticket_id, path, f"started from {start}, which {self.shown} does not have any more")
        theirs, note = git.sha(f"{HEADS}{branch}"), ""
        if theirs and not git.is_ancestor(theirs, start):
            base_sha = base_sha or self._fork(fresh, theirs)
            start, note = theirs, f"it continues {branch} as {self.shown} has it, at {theirs}"
        git.run(*add, "--no-track", "-b", branch, str(path), start)
        return base_sha or fresh.sha, f"{asides}{note}"

    def _put_foreign_aside(self, branch: str) -> str:
        """Make room for a branch that is to be begun, and return a note.

        What the origin had just now or we pushed stays: agents can write to the clone, and to no other place.
        """
        git, outbox, ref, notes = self.clone(), self.outbox(), f"refs/heads/{branch}", ""
        ours = {outbox.sha(ref), outbox.sha(f"{HEADS}{branch}")}
        listing = git.run("for-each-ref", "--format=%(objectname) %(refname)", ref)  # with what is below that name
        for sha, _, name in (line.partition(" ") for line in listing.text.splitlines()):
            if name != ref or sha not in ours:
                aside = f"refs/aside/{name.removeprefix('refs/heads/')}-{sha[:12]}"
                git.run("update-ref", aside, sha)
                git.run("update-ref", "--no-deref", "-d", name)
                notes += f"what {name} was in the clone is now {aside}; "
        return notes

    def _fork(self, fresh: Base, revision: str) -> str:
        """Return where `revision` left the freshly fetched base; the base itself if they share nothing."""
        return self.clone().ask("merge-base", fresh.sha, revision).text or fresh.sha


def branch_of(ticket_id: str) -> str:
    """Return the name of the ticket's branch, in the clone and at the origin."""
    return f"{TICKETS}{ticket_id}"


def base_ref(ticket_id: str) -> str:
    """Return the outbox's name for the commit that the ticket's work is compared with."""
    return f"refs/base/{ticket_id}"


def put_branch_back(checkout: Checkout, *, tolerant: bool) -> str:
    """Put HEAD on the ticket's branch where that loses nothing, and return a note.

    `tolerant`: a rebase or bisection under way is left to the agent that resumes it.

    Raises:
        WorktreeRefused: HEAD and the branch have each commits that the other has not, or a checkout would
            overwrite something.
    """
    git, ref = checkout.git, checkout.ref
    stuck = next((what for name, what in _STUCK.items() if (checkout.admin / name).exists()), None)
    if stuck:
        if tolerant:
            return f"{stuck} is under way"
        raise checkout.refused(f"is in the middle of {stuck}: end or abort it")
    at, head, tip = git.ask("symbolic-ref", "--quiet", "HEAD").text, git.sha("HEAD"), git.sha(ref)
    if at == ref and tip:
        return ""
    if head is None and tip is None:
        raise checkout.refused(f"has no commit and {ref} is gone: find the commit and make the branch again")
    if head and (tip is None or git.is_ancestor(tip, head)):
        git.run("update-ref", ref, head, tip or "")
    elif head and tip and git.is_ancestor(head, tip):
        if (result := git.ask("checkout", "--quiet", branch_of(checkout.ticket_id), "--")).status:
            raise checkout.refused(f"is at {head} with changes that keep it from going back: {result.stderr}")
    elif head:
        raise checkout.refused(
            f"is at {head}, which is not on {branch_of(checkout.ticket_id)} ({tip}): merge or reset by hand"
        )
    git.run("symbolic-ref", "HEAD", ref)
    return f"HEAD was {'at ' + at if at else 'detached'}; it is on {branch_of(checkout.ticket_id)} again"


def _half_made(admin: Path) -> bool:
    """Whether `git worktree add` was killed: no agent was given that directory.

    Source: git's builtin/worktree.c locks with this reason until the checkout is complete.
    """
    return (read_small(admin / "locked") or b"").strip() == b"initializing"
