"""Run one git command: what it inherits, what it may run, how long, and what its failure means.

Invariant: git gets an environment from an allow-list and no hook, fsmonitor, pager,
prompt or `ext::` transport; a message of git leaves here without credentials.

The only importer of GitPython. Knows git's command line; does not know our directories.
"""

import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from io import BytesIO
from pathlib import Path

from git import Git

from runner.worktree.errors import GitFailed, WorktreeLocked

_INHERITED = frozenset({"PATH", "HOME", "USER", "LOGNAME", "TMPDIR"})
_INHERITED_OUTSIDE = _INHERITED | {
    "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
}  # fmt: skip
_OPTIONS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.quotePath=false",
    "core.safecrlf=false",
    "protocol.ext.allow=never",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "push.recurseSubmodules=no",
    "diff.ignoreSubmodules=dirty",
    "commit.gpgSign=false",
    "push.gpgSign=false",
    "push.followTags=false",
    "gc.autoDetach=false",
    "maintenance.autoDetach=false",
    "advice.addEmbeddedRepo=false",
)
_OPTIONS_INSIDE = ("safe.directory=*", "core.excludesFile=/dev/null", "core.attributesFile=/dev/null")
_SAID_CHARS = 2000
_LONG = frozenset({"bundle", "fetch", "lfs", "merge", "read-tree", "submodule", "worktree"})
_LOCKED = re.compile(r"Unable to create '[^']*\.lock': File exists|could not lock config file [^:]*: File exists")
_USERINFO = re.compile(r"(?<!ssh)(://)[^/@\s']+@")
_SSH_PASSWORD = re.compile(r"(ssh://[^/@:\s']+):[^/@\s']+@")


@dataclass(frozen=True)
class Result:
    """What a command answered."""

    status: int
    stdout: bytes
    stderr: str
    timed_out: bool = False

    @property
    def text(self) -> str:
        """The output without the line end; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode(errors="replace").rstrip("\n")

    @property
    def paths(self) -> list[str]:
        """The NUL-separated names of a `-z` output."""
        return [os.fsdecode(name) for name in self.stdout.split(b"\0") if name]

    @property
    def told_paths(self) -> list[str]:
        """The same for a person or an agent: a name need not be text."""
        return [name.decode(errors="replace") for name in self.stdout.split(b"\0") if name]


class _Bounded(BytesIO):
    """Keeps the first bytes, swallows the rest."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.left = limit

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.left -= super().write(data[: max(self.left, 0)])
        return len(data)


class HangUp(threading.Event):
    """Once it is set, commands that talk to another machine for it end: those under way, and all that begin later."""

    def __init__(self) -> None:
        super().__init__()
        self._talking: set[Git.AutoInterrupt] = set()

    def set(self) -> None:
        """End them; TERM makes git remove its lock files."""
        super().set()
        for process in [*self._talking]:
            process.terminate()

    @contextmanager
    def ends(self, process: Git.AutoInterrupt) -> Iterator[None]:
        """End this process, too, if it is set meanwhile or was before."""
        self._talking.add(process)
        try:
            if self.is_set():
                process.terminate()
            yield
        finally:
            self._talking.discard(process)


@dataclass(frozen=True)
class Command:
    """Git in one directory, about one thing (a ticket, a repository) that its errors name.

    `outside` is for commands that talk to the origin from a repository that no agent is given: they see the
    operator's own git configuration (credential helpers, proxies). All others see none but the repository's.
    What copies a repository or its files may take `timeout_s`, anything else `short_timeout_s` at most: an agent can
    make git wait, for a FIFO that is called `.gitignore`.
    """

    what: str
    directory: Path
    timeout_s: float
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    outside: bool = False
    short_timeout_s: float = 60.0
    hang_up: HangUp | None = None

    def with_environment(self, **more: str) -> "Command":
        """Return the same with more environment."""
        return replace(self, environment={**self.environment, **more})

    def ask(self, *arguments: str, limit_bytes: int | None = None) -> Result:
        """Run git and return whatever it answered; `limit_bytes` bounds the output that is kept.

        Raises:
            WorktreeLocked: A lock file was in the way.
        """
        options = _OPTIONS if self.outside else (*_OPTIONS, *_OPTIONS_INSIDE)
        variables = self._variables()
        kept_names = {*variables, *(_INHERITED_OUTSIDE if self.outside else _INHERITED)}
        limit_s = self.timeout_s if self.outside or arguments[0] in _LONG else min(self.timeout_s, self.short_timeout_s)
        leash = [*_leash(), "timeout", "--signal=KILL", f"{limit_s:f}"]
        command = [*_without_all_but(kept_names), *leash, "git", "--no-pager", *_flags(options), *arguments]
        began_s = time.monotonic()
        kept = None if limit_bytes is None else _Bounded(limit_bytes)
        status, out, err = self._execute(command, variables, kept)
        timed_out = status == -signal.SIGKILL and time.monotonic() - began_s >= limit_s
        said = f"no end after {limit_s:g} s" if timed_out else self.redact(err)
        if status and _LOCKED.search(said):
            raise WorktreeLocked(self.what, said)
        return Result(status, out if kept is None else kept.getvalue(), said, timed_out)

    def _execute(self, command: list[str], variables: dict[str, str], kept: _Bounded | None) -> tuple[int, bytes, str]:
        git = Git(self.directory)  # in a session of its own: a terminal's ^C is for us, and no prompt finds a terminal
        if self.hang_up is not None:
            process = git.execute(command, as_process=True, env=variables, start_new_session=True)
            with self.hang_up.ends(process):
                out, err = process.communicate()
            return process.returncode, out, err.decode(errors="replace")
        return git.execute(
            command,
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            output_stream=kept,
            env=variables,
            start_new_session=True,
        )

    def run(self, *arguments: str, limit_bytes: int | None = None) -> Result:
        """Run git and return what it answered.

        Raises:
            GitFailed: It ended with another status than 0.
            WorktreeLocked: A lock file was in the way.
        """
        result = self.ask(*arguments, limit_bytes=limit_bytes)
        if result.status:
            raise GitFailed(self.what, arguments[0], result.stderr or f"status {result.status}")
        return result

    def sha(self, revision: str) -> str | None:
        """Return the commit that `revision` names, None if there is none."""
        found = self.ask("rev-parse", "--quiet", "--verify", "--end-of-options", f"{revision}^{{commit}}")
        return found.text if found.status == 0 else None

    def is_ancestor(self, old: str, new: str) -> bool:
        """Whether `new` contains `old`; False as well when one of them is not here."""
        return self.ask("merge-base", "--is-ancestor", old, new).status == 0

    def redact(self, text: str) -> str:
        """Return the end of `text` without credentials."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return redact_url(text).strip()[-_SAID_CHARS:]

    def _variables(self) -> dict[str, str]:
        inside = {} if self.outside else {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        return {
            "LC_ALL": "C",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_LFS_SKIP_SMUDGE": "1",
            **inside,
            **self.environment,
        }


@cache
def has_lfs() -> bool:
    """Return whether git-lfs is installed."""
    return shutil.which("git-lfs") is not None


def redact_url(text: str) -> str:
    """Return `text` without the user and password of URLs in it; ssh needs its user, and he is no secret."""
    return _SSH_PASSWORD.sub(r"\1@", _USERINFO.sub(r"\1", text))


def _flags(options: Iterable[str]) -> Iterable[str]:
    for option in options:
        yield from ("-c", option)


def _without_all_but(kept: Collection[str]) -> list[str]:
    """Return what takes everything else out of the environment: GitPython always passes ours on.

    Names only, since arguments are public.
    """
    return ["env", *(f"--unset={name}" for name in os.environ if name not in kept)]


@cache
def _leash() -> tuple[str, ...]:
    """Return what ends git with the thread that waits for it, where util-linux is new enough (2.33).

    It holds timeout(1), which hands TERM on to git and all that git started: they are one process group. TERM makes
    git remove its lock files. A daemon that was killed thus leaves no git at work in its worktrees.
    """
    leash = ("setpriv", "--pdeathsig", "TERM")
    status, _, _ = Git().execute(
        ["env", *leash, "true"], with_extended_output=True, with_exceptions=False, stdout_as_string=True
    )
    return leash if status == 0 else ()
