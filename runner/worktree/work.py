"""Read what a ticket's work is so far, and gather what belongs to a commit of it.

Invariant: reading changes neither the index, nor the files, nor the clone's objects.

Knows worktrees; does not know delivery.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.worktree.clone import PLACEHOLDERS, checked_sha
from runner.worktree.command import Command
from runner.worktree.trees import Checkout, Trees

_COMMITS_SHOWN, _SUBJECT_CHARS, _PATHS_SHOWN = 50, 200, 200
_NAMED = 500  # paths in one command
_DIFF = ("diff", "--cached", "--no-ext-diff", "--no-textconv", "--no-color")


@dataclass(frozen=True)
class Commit:
    """One commit of a ticket."""

    sha: str
    subject: str


@dataclass(frozen=True)
class Facts:
    """What git shows of a ticket's work: the newest 50 commits, the first 200 uncommitted paths."""

    commits: tuple[Commit, ...]
    uncommitted: tuple[str, ...]
    changed: bool


class Work(Trees):
    """The work in the worktrees of a clone."""

    def facts(self, ticket_id: str, base_sha: str) -> Facts:
        """Return what the ticket's work is so far; `changed` compares the files with those of `base_sha`."""
        checkout = self.checkout(ticket_id)
        head = checkout.git.run("rev-parse", "--verify", "HEAD^{commit}").text
        span = f"{checked_sha(base_sha)}..{head}"
        log = checkout.git.run("log", "--no-show-signature", f"-{_COMMITS_SHOWN}", "--format=%H %s", span).text
        with self._snapshot(checkout) as (git, left_out):
            uncommitted = [*git.run(*_DIFF, "--name-only", "--no-renames", "-z", head).paths, *left_out]
            changed = bool(left_out) or git.ask(*_DIFF, "--quiet", base_sha).status != 0
        return Facts(
            tuple(Commit(sha, subject[:_SUBJECT_CHARS]) for sha, _, subject in map(_words, log.splitlines())),
            tuple(os.fsencode(name).decode(errors="replace") for name in uncommitted[:_PATHS_SHOWN]),
            changed,
        )

    def diff(self, ticket_id: str, base_sha: str, *, limit_bytes: int) -> str:
        """Return the work since `base_sha` as a patch, uncommitted and untracked files included; changes nothing."""
        with self._snapshot(self.checkout(ticket_id)) as (git, _):
            patch = git.run(*_DIFF, checked_sha(base_sha), limit_bytes=limit_bytes + 1).stdout
        cut = f"\n[cut after {limit_bytes} bytes]\n" if len(patch) > limit_bytes else ""
        return patch[:limit_bytes].decode(errors="replace") + cut

    def content(self, ticket_id: str) -> str:
        """Return what is the same for the same commit with the same files, uncommitted and untracked ones included."""
        checkout = self.checkout(ticket_id)
        head = checkout.git.run("rev-parse", "--verify", "HEAD^{commit}").text
        with self._snapshot(checkout) as (git, left_out):
            return " ".join([head, git.run("write-tree").text, *left_out])

    @contextmanager
    def _snapshot(self, checkout: Checkout, objects: Path | None = None) -> Iterator[tuple[Command, list[str]]]:
        """Give git with an index of everything there is, and the names of what git cannot have in it.

        Real index and objects are kept; new objects go to the directory `objects`, or are forgotten.
        """
        with TemporaryDirectory(dir=self.state, prefix=".snapshot-") as room:
            index = Path(room, "index")
            if objects is None:
                objects = Path(room, "objects")
                objects.mkdir()
            git = checkout.git.with_environment(
                GIT_INDEX_FILE=str(index),
                GIT_OBJECT_DIRECTORY=str(objects),
                GIT_ALTERNATE_OBJECT_DIRECTORIES=f'"{self.clone_path / "objects"}"',
            )
            if (checkout.admin / "index").is_file():
                shutil.copyfile(checkout.admin / "index", index)
            else:
                git.run("read-tree", "HEAD")
            nested, spared = nested_repositories(git), as_committed(git)
            skipped = (f":(top,exclude,literal){name}" for name in nested)
            refused = git.ask("add", "--all", "--", ":/", *skipped).status
            left_out = [*nested, *(_add_what_can_be(git, _not_added(git)) if refused else ())]
            add_hidden(git, checkout.path)
            put_back(git, spared)
            yield git, left_out


def nested_repositories(git: Command) -> list[str]:
    """Return untracked directories that are repositories: git would record them as links to nothing."""
    return [name for name in git.run("ls-files", "--others", "--exclude-standard", "-z").paths if name.endswith("/")]


def as_committed(git: Command) -> list[str]:
    """Return files that git takes for changed though they hold what was committed, byte for byte.

    They were committed with other line ends than .gitattributes asks for since, so that to add them would convert
    them. Which of them git notices after a checkout depends on its clock, and it is no work of the ticket.
    """
    fields = git.run("diff-files", "-z", "--diff-filter=M", "--ignore-submodules=all").stdout.split(b"\0")
    changed = {}
    for what, name in zip(fields[::2], fields[1::2], strict=False):
        old_mode, mode, oid, *_ = what.decode().lstrip(":").split(" ")
        if old_mode == mode and mode.startswith("100"):
            changed[os.fsdecode(name)] = oid
    names = [*changed]
    same = []
    for few in (names[at : at + _NAMED] for at in range(0, len(names), _NAMED)):
        oids = git.ask("hash-object", "--no-filters", "--", *few).text.splitlines()
        same += [name for name, oid in zip(few, oids, strict=False) if changed[name] == oid]
    staged = {*git.run(*_DIFF, "--name-only", "-z", "HEAD").paths} if same else set()
    return [name for name in same if name not in staged]


def put_back(git: Command, names: list[str]) -> None:
    """Let the index have these as HEAD has them."""
    for few in (names[at : at + _NAMED] for at in range(0, len(names), _NAMED)):
        git.run("reset", "--quiet", "HEAD", "--", *(f":(top,literal){name}" for name in few))


def add_hidden(git: Command, path: Path) -> None:
    """Add what only our own exclude list hides and is no leftover of the sandbox: those are empty."""
    names = git.run("ls-files", "--others", "--exclude-per-directory=.gitignore", "-z", "--", *PLACEHOLDERS).paths
    real = [name for name in names if not name.endswith("/") and _has_content(path / name)]
    if real:
        git.run("add", "--force", "--", *(f":(top,literal){name}" for name in real))


def _not_added(git: Command) -> list[str]:
    """Return what differs from the index, without nested repositories."""
    changed = git.run("diff-files", "--name-only", "-z", "--ignore-submodules=all").paths
    new = git.run("ls-files", "--others", "--exclude-standard", "-z").paths
    return [name for name in dict.fromkeys([*changed, *new]) if not name.endswith("/")]


def _add_what_can_be(git: Command, names: list[str]) -> list[str]:
    """Add these, and return those that git refuses: for one of them it leaves out all."""
    named = (f":(top,literal){name}" for name in names)
    if not names or (len(names) <= _NAMED and not git.ask("add", "--all", "--", *named).status):
        return []
    if len(names) == 1:
        return names
    half = len(names) // 2
    return [*_add_what_can_be(git, names[:half]), *_add_what_can_be(git, names[half:])]


def _has_content(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISLNK(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_size > 0)


def _words(line: str) -> tuple[str, str, str]:
    return line.partition(" ")
