"""Put our copies of the repository and the work in the worktrees into one file, and make them out of it elsewhere.

Refs are read first and files after them, so that a commit made meanwhile shows as uncommitted work and never
as its reversal. What goes with a worktree is every file that git does not ignore, as a commit on no branch: no
index, no merge or rebase under way, nothing ignored (set-up makes that again).

Invariant: neither the clone nor a worktree nor its index is changed by being saved.
"""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.errors import RunnerError
from runner.worktree.clone import checked_sha, is_branch_name
from runner.worktree.command import Command
from runner.worktree.errors import WorktreeRefused
from runner.worktree.files import read_small, write_whole
from runner.worktree.survey import Place, Surveyed
from runner.worktree.trees import Checkout

_ALL = ("fetch", "--quiet", "--no-tags", "--no-auto-maintenance", "--no-write-fetch-head", "--update-shallow")
_SAVED = "refs/saved/"
_HEADS = "refs/heads/"
_LOOKS = 5
"""Until a worktree whose HEAD moves is taken as it is."""
_UNDER_WAY = ("MERGE_HEAD", "rebase-merge", "rebase-apply", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG")


@dataclass(frozen=True)
class Saved:
    """A worktree in a bundle."""

    ticket: str
    head: str
    """The commit that it was at."""
    ref: str | None
    """The branch that HEAD named, None when it was detached."""
    left_out: tuple[str, ...]
    """What of it is not in the bundle, for a person."""


class Bundles(Surveyed):
    """The repository as one file."""

    def bundle(self, tickets: Collection[str], file: Path, room: Path) -> list[Saved]:
        """Write both copies, and the work of `tickets` that have a worktree, to the new `file`.

        Args:
            tickets: Ids; other worktrees are left out.
            file: Where.
            room: An empty directory of ours.

        Raises:
            GitFailed: The clone cannot be read.
        """
        git = self._empty(room)
        copies = {"outbox": self.outbox_path, "clone": self.clone_path}
        (room / "objects/info").mkdir(exist_ok=True)
        (room / "objects/info/alternates").write_text("".join(f"{path}/objects\n" for path in copies.values()))
        (room / "shallow").write_bytes(self.shallow())
        self.clone()
        for name, path in copies.items():
            git.run(*_ALL, str(path), f"+refs/*:refs/{name}/*")
        saved = [self._save(git, room, ticket) for ticket in tickets if self.place(ticket) is Place.THERE]
        git.run("bundle", "create", "--quiet", str(file), "--all")
        return saved

    def shallow(self) -> bytes:
        """Return where history ends in our copies, as git writes it; nothing when the origin has all of it."""
        places = (path / "shallow" for path in (self.outbox_path, self.clone_path))
        lines = {line for place in places for line in (read_small(place) or b"").splitlines()}
        return b"".join(line + b"\n" for line in sorted(lines))

    def unbundle(self, file: Path, saved: Iterable[Saved], *, shallow: bytes, final: Path) -> None:
        """Make copies and worktrees out of a bundle, in this state directory, to be used at `final`.

        Raises:
            GitFailed: The bundle is damaged.
            RunnerError: It says something that no bundle of ours says.
        """
        sources = {
            self.outbox_path: {"refs/outbox/": "refs/"},
            self.clone_path: {"refs/clone/": "refs/", _SAVED: _SAVED},
        }
        for path, refs in sources.items():
            with self._new(path) as made:
                (made / "shallow").write_bytes(shallow)
                mapped = [f"+{theirs}*:{ours}*" for theirs, ours in refs.items()]
                self._command(made).run(*_ALL, str(file), *mapped)
                if not shallow:
                    (made / "shallow").unlink(missing_ok=True)
        for each in saved:
            self._put(each, final)

    def _empty(self, room: Path) -> Command:
        Command(self.shown, room, self._timeout_s).run(
            "init", "--quiet", "--bare", "--template=", "--initial-branch=none", str(room)
        )
        return self._command(room)

    def _save(self, git: Command, room: Path, ticket_id: str) -> Saved:
        try:
            checkout = self.checkout(ticket_id)
        except WorktreeRefused as error:
            raise RunnerError(f"{error}: it cannot be backed up") from error
        looks = 0
        while True:
            head, ref = _head_of(checkout)
            with self._snapshot(checkout, room / "objects") as (snapshot, unknown):
                tree = snapshot.run("write-tree").text
            looks += 1
            if looks == _LOOKS or (head, ref) == _head_of(checkout):
                break
        work = git.run("commit-tree", tree, "-p", head, "-m", f"Files of {ticket_id}").text
        git.run("update-ref", f"{_SAVED}{ticket_id}", work)
        under_way = [name for name in _UNDER_WAY if (checkout.admin / name).exists()]
        left_out = [*map(_left_out, unknown), *(f"its {name}" for name in under_way)]
        return Saved(ticket_id, head, ref, tuple(left_out))

    def _put(self, saved: Saved, final: Path) -> None:
        """Make a worktree: HEAD, index and branch as they were, the files as they were saved."""
        head = checked_sha(saved.head)
        if saved.ref is not None and not is_branch_name(saved.ref.removeprefix(_HEADS)):
            raise RunnerError(f"{saved.ref!r} is no branch: this is not a backup of ours")
        path, git, work = self.path_of(saved.ticket), self.clone(), f"{_SAVED}{saved.ticket}"
        path.parent.mkdir(exist_ok=True, mode=0o700)
        git.run("worktree", "add", "--quiet", "--no-checkout", "--detach", str(path), head)
        admin = self._registered(path)
        if admin is None:
            raise RunnerError(f"{path}: git did not make the worktree")
        tree = self._tree_command(saved.ticket, path, admin)
        tree.run("read-tree", "--reset", "-u", work)
        tree.run("read-tree", head)
        tree.ask("update-index", "-q", "--refresh")
        if saved.ref is not None:
            git.run("update-ref", saved.ref, head)
            tree.run("symbolic-ref", "HEAD", saved.ref)
        git.run("update-ref", "-d", work)
        there = final / path.relative_to(self.state)
        write_whole(path / ".git", os.fsencode(f"gitdir: {final / admin.relative_to(self.state)}\n"))
        write_whole(admin / "gitdir", os.fsencode(f"{there}/.git\n"))


def _head_of(checkout: Checkout) -> tuple[str, str | None]:
    """Return the commit and the branch that a worktree is at; the tip of its own branch where HEAD has no commit."""
    ref = checkout.git.ask("symbolic-ref", "--quiet", "HEAD").text or None
    head = checkout.git.sha("HEAD")
    if head is not None:
        return head, ref
    return checkout.git.run("rev-parse", "--verify", f"{checkout.ref}^{{commit}}").text, None


def _left_out(name: str) -> str:
    """Return what to say of something that git cannot save."""
    return f"the repository {name} in it" if name.endswith("/") else f"its file {name}, which git refuses"
