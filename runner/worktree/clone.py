"""Keep our two copies of the repository: one that agents work on, one that speaks to the origin.

`outbox.git` is bare and given to no agent; everything that is fetched or pushed goes
through it, so a credential never meets a file that an agent wrote. `clone` is the bare
repository that worktrees hang off, filled from the outbox. Agents can write to it.

Invariant: a copy is there whole or not at all, and the user's own checkout is only ever
fetched from, or sent `ticket/<id>`.

That the clone's configuration, hooks and attributes are put back before each command of
ours is hygiene: an agent that lives meanwhile can change them again. It is no boundary
without another uid or the sandbox. Knows the directories; does not know worktrees.
"""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tenacity import Retrying, retry_if_exception_type, sleep_using_event, stop_after_attempt, wait_exponential

from runner.worktree.command import Command, HangUp, Result, has_lfs, redact_url
from runner.worktree.errors import (
    BaseMissing,
    NoRoomForTickets,
    RepositoryEmpty,
    RepositoryMismatch,
    RepositoryMissing,
    RepositoryUnreachable,
)
from runner.worktree.files import clear, read_small, write_whole
from runner.worktree.origin import checked, is_path, secrets_of, why, with_url

HEADS = "refs/remotes/origin/"
TICKETS = "ticket/"
_ROOT = TICKETS.rstrip("/")
_EVERYTHING = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
_FRESH = ("fetch", "--quiet", "--prune", "--update-shallow")
_TRIES = 3
_BRANCHES_SHOWN = 10
_INSTRUCTIONS = ("CLAUDE.md", "AGENTS.md")
_INSTRUCTIONS_BYTES = 64 * 1024
_INITIAL_BRANCH = "none"
_NO_STASH = "refs/stash/is-shared-by-all-tickets"  # beside it there can be no refs/stash
_HEAD = f"ref: refs/heads/{_INITIAL_BRANCH}\n".encode()

# What the sandbox of Claude Code leaves in a working directory: without these lines `git add -A` fails on them
# inside, and empty files of these names are committed outside.
PLACEHOLDERS = (
    ".gitconfig", ".gitmodules", ".bashrc", ".bash_profile", ".zshrc", ".zprofile", ".profile", ".ripgreprc",
    ".mcp.json", ".vscode", ".idea", ".claude/commands", ".claude/agents",
)  # fmt: skip

_LFS = (
    '[filter "lfs"]\n\tclean = git-lfs clean -- %f\n\tsmudge = git-lfs smudge -- %f\n'
    "\tprocess = git-lfs filter-process\n\trequired = true\n"
)
_LOCKS: dict[Path, threading.RLock] = {}


@dataclass(frozen=True)
class Base:
    """A branch of the origin, as it was just now."""

    name: str
    sha: str


class Clone:
    """Our copies of one repository, in `state`.

    Args:
        state: A directory of ours that outlives the process.
        origin: A path, or a URL of https, http, ssh, git or file, or host:path.
        author_name: Of our commits, and of an agent's that says nothing else.
        author_email: Likewise.
        credential_env: Environment for commands that talk to the origin and for no others: `GIT_ASKPASS`,
            `GIT_SSH_COMMAND`, or `GIT_CONFIG_COUNT` with its keys and values. Its values are kept out of messages.
        timeout_s: Seconds that a git command may take to copy the repository or its files.
        short_timeout_s: Seconds that any other may take.
        retry_s: Seconds before the second try to reach the origin; doubles for the third.
    """

    def __init__(
        self,
        state: Path,
        origin: str,
        *,
        author_name: str,
        author_email: str,
        credential_env: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
        short_timeout_s: float = 60.0,
        retry_s: float = 2.0,
    ) -> None:
        self.state = state.resolve()
        self.outbox_path, self.clone_path = self.state / "outbox.git", self.state / "clone"
        self.origin = checked(origin)
        self.shown = redact_url(self.origin)
        self._timeout_s, self._short_timeout_s, self._retry_s = timeout_s, short_timeout_s, retry_s
        self._identity = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", author_name), ("EMAIL", author_email))
        }
        self._credential_env = credential_env or {}
        self._outside_env = with_url(self._credential_env, self.origin)
        self._secrets = secrets_of(credential_env or {}, self.origin)
        self._config = _config(self.shown, author_name, author_email).encode()
        self._lock = _LOCKS.setdefault(self.state, threading.RLock())
        self.hang_up = HangUp()

    def until(self, hang_up: HangUp) -> Self:
        """Return the same, for which the origin is unreachable once `hang_up` is set."""
        same = copy(self)
        same.hang_up = hang_up
        return same

    def prepare(self) -> None:
        """Make what is missing of our copies; needs the origin only then.

        To be called once at the start, by the one process that holds the state directory.

        Raises:
            RepositoryMissing, RepositoryEmpty, RepositoryMismatch, RepositoryOfOtherHash: A person has to change
                something.
            RepositoryDenied, RepositoryUnreachable: The origin gave no access or no answer.
        """
        if is_path(self.origin) and not Path(self.origin).exists():
            raise RepositoryMissing(self.shown, "no such path")
        with self._lock:
            self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._own()
            if not self.outbox_path.exists():
                with self._new(self.outbox_path) as made:
                    self._outside(made, *_FRESH, "origin", *_EVERYTHING)
                    if not self._command(made).run("for-each-ref", "--count=1", HEADS).stdout:
                        raise RepositoryEmpty(self.shown)
            if not self.clone_path.exists():
                with self._new(self.clone_path) as made:
                    self._command(made).run(*_FRESH, str(self.outbox_path), f"+{HEADS}*:{HEADS}*", _EVERYTHING[1])
                    self._restore(made)
            self._free_outbox()
            self._keep_from_stashing()
            for left in self.state.glob(".snapshot-*"):
                clear(left)
            for git in (self.outbox(), self.clone()):
                git.run("rev-parse", "--git-dir")

    def fetch_base(self, base: str | None) -> Base:
        """Fetch, and return the branch `base`; None is the branch that the origin's HEAD names.

        Raises:
            BaseMissing: There is no such branch, or its name is none.
            NoRoomForTickets: No ticket could be delivered.
            RepositoryMissing, RepositoryDenied, RepositoryUnreachable: The origin gave no answer.
        """
        with self._lock:
            self._fetch()
            if self.outbox().sha(f"{HEADS}{_ROOT}"):
                raise NoRoomForTickets(self.shown, _ROOT, f"{TICKETS}<id>")
            name = base if base is not None else self._default()
            sha = self.outbox().sha(f"{HEADS}{name}") if name and is_branch_name(name) else None
            if name is None or sha is None:
                listing = self.outbox().run("for-each-ref", "--format=%(refname)", HEADS).text.splitlines()
                names = [line.removeprefix(HEADS) for line in listing if not line.startswith(f"{HEADS}{TICKETS}")]
                raise BaseMissing(self.shown, name, names[:_BRANCHES_SHOWN])
            return Base(name, sha)

    def instructions(self, base_sha: str) -> str | None:
        """Return the CLAUDE.md, else the AGENTS.md, of that commit: at most 64 KiB of it; None if it has neither."""
        for name in _INSTRUCTIONS:
            entry = self.outbox().run("ls-tree", checked_sha(base_sha), name).text
            mode, _, rest = entry.partition(" ")
            if mode.startswith("100"):  # a file and not a symlink: CLAUDE.md is often one to AGENTS.md
                oid = rest.split()[1]
                return self.outbox().run("cat-file", "blob", oid, limit_bytes=_INSTRUCTIONS_BYTES).text
        return None

    def outbox(self) -> Command:
        """Return git in the outbox, without credentials."""
        return self._command(self.outbox_path)

    def clone(self) -> Command:
        """Return git in the clone, whose configuration is ours again."""
        self._restore(self.clone_path)
        return self._command(self.clone_path)

    def _command(self, directory: Path, what: str | None = None) -> Command:
        environment = {**self._identity, "GIT_DIR": str(directory)}
        return Command(
            what or self.shown,
            directory,
            self._timeout_s,
            environment,
            self._secrets,
            short_timeout_s=self._short_timeout_s,
        )

    def _fetch(self) -> None:
        self._outside(self.outbox_path, *_FRESH, "origin", _EVERYTHING[0])
        self.clone().run(*_FRESH, str(self.outbox_path), f"+{HEADS}*:{HEADS}*")

    def _default(self) -> str | None:
        listing = self._outside(self.outbox_path, "ls-remote", "--symref", "origin", "HEAD").text
        head = re.match(r"ref: refs/heads/(\S+)\tHEAD$", listing, re.MULTILINE)
        return head[1] if head else None

    def _outside(self, directory: Path, *arguments: str, ok: tuple[int, ...] = (0,)) -> Result:
        """Run git that talks to the origin."""
        return self._asked(self._outside_command(directory, self._outside_env, self.shown), *arguments, ok=ok)

    def _outside_command(self, directory: Path, environment: Mapping[str, str], what: str) -> Command:
        variables = {**environment, "GIT_DIR": str(directory)}
        return Command(
            redact_url(what),
            directory,
            self._timeout_s,
            variables,
            self._secrets,
            outside=True,
            hang_up=self.hang_up,
        )

    def _asked(self, command: Command, *arguments: str, ok: tuple[int, ...] = (0,)) -> Result:
        """Run git that talks to another machine; what only the network did is tried again."""
        for attempt in Retrying(
            retry=retry_if_exception_type(RepositoryUnreachable),
            stop=lambda state: self.hang_up.is_set() or stop_after_attempt(_TRIES)(state),
            wait=wait_exponential(multiplier=self._retry_s),
            sleep=sleep_using_event(self.hang_up),
            reraise=True,
        ):
            with attempt:
                result = command.ask(*arguments)
                if self.hang_up.is_set():
                    raise RepositoryUnreachable(command.what, "it is not waited for any more")
                if result.timed_out:
                    self._free_outbox()
                if result.status not in ok:
                    raise why(command.what, arguments[0], result)
                return result
        raise AssertionError  # a Retrying returns or raises

    def _own(self) -> None:
        """Note whose copies these are, before there are any; not in a repository, where an agent could write."""
        note = self.state / "repository"
        if not self.outbox_path.exists() and not self.clone_path.exists():
            write_whole(note, f"{self.shown}\n".encode())
        if (theirs := note.read_text().strip()) != self.shown:
            raise RepositoryMismatch(self.state, theirs, self.shown)

    @contextmanager
    def _new(self, path: Path) -> Iterator[Path]:
        """Give an empty repository that becomes `path` when all went well."""
        made = path.with_name(f".{path.name}.new")
        clear(made)
        Command(self.shown, self.state, self._timeout_s).run(
            "init", "--quiet", "--bare", "--template=", f"--initial-branch={_INITIAL_BRANCH}", str(made)
        )
        try:
            yield made
            made.rename(path)
        finally:
            clear(made)

    def _restore(self, path: Path) -> None:
        """Put back what git would run or obey in the clone and an agent may have changed."""
        for name in ("info", "worktrees"):
            if (path / name).is_symlink() or not (path / name).is_dir():
                clear(path / name)
        exclude = "".join(f"/{name}\n" for name in PLACEHOLDERS).encode()
        for name, content in (("HEAD", _HEAD), ("config", self._config), ("info/exclude", exclude)):
            file = path / name
            if read_small(file) != content:
                if file.is_dir():
                    clear(file)
                file.parent.mkdir(exist_ok=True)
                write_whole(file, content)
        for name in ("hooks", "config.worktree", "info/attributes", "info/grafts"):
            clear(path / name)

    def _keep_from_stashing(self) -> None:
        """Let no agent's `git stash` succeed: all worktrees have one stash, so what it saves another's `pop` takes."""
        git = self.clone()
        head = git.run("for-each-ref", "--count=1", "--format=%(objectname)", HEADS).text
        git.ask("update-ref", _NO_STASH, head)

    def _free_outbox(self) -> None:
        """Remove lock files of git that was killed: the outbox is ours alone, under our lock."""
        for lock in (*self.outbox_path.glob("*.lock"), *self.outbox_path.glob("refs/**/*.lock")):
            lock.unlink(missing_ok=True)


def is_branch_name(name: str) -> bool:
    """Whether git takes `name` as a branch; the rules of git-check-ref-format(1), and no dash in front."""
    return not (
        name.startswith(("-", "/"))
        or name.endswith(("/", "."))
        or name in {"HEAD", ""}
        or re.search(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//", name)
        or any(part.startswith(".") or part.endswith(".lock") for part in name.split("/"))
    )


def checked_sha(sha: str) -> str:
    """Return `sha`.

    Raises:
        ValueError: It is not a full commit id.
    """
    if not re.fullmatch(r"[0-9a-f]{40}(?:[0-9a-f]{24})?", sha):
        raise ValueError(f"{sha!r} is not a commit id")
    return sha


def _config(shown: str, name: str, email: str) -> str:
    """Return all of the clone's configuration: an agent may fetch, and is kept from pushing by mistake."""

    def quoted(value: str) -> str:
        return '"' + re.sub(r'(["\\])', r"\\\1", re.sub(r"[\x00-\x1f]", " ", value)) + '"'

    return (
        "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n\tlogallrefupdates = true\n"
        f"[user]\n\tname = {quoted(name)}\n\temail = {quoted(email)}\n"
        f'[remote "origin"]\n\turl = {quoted(shown)}\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
        '\tpushurl = "the ticket\'s branch is pushed when its work is checked"\n'
        "[gc]\n\tautodetach = false\n"
    ) + (_LFS if has_lfs() else "")
