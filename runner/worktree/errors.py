"""What goes wrong with git in a way that we foresee; each message says what to do.

What git said is redacted and cut before it gets here; it may be several lines, so what to do comes before it.
Knows only the base errors.
"""

from collections.abc import Sequence
from pathlib import Path

from runner.errors import ConfigError, RunnerError


class GitFailed(RunnerError):
    """Git failed in a way that none of the other classes names."""

    def __init__(self, what: str, command: str, said: str) -> None:
        super().__init__(what, command, said)
        self.what, self.command, self.said = what, command, said

    def __str__(self) -> str:
        return f"{self.what}: git {self.command} failed: {self.said}"


class RepositoryMissing(ConfigError):
    """There is no repository at the configured place."""

    def __init__(self, repository: str, said: str) -> None:
        super().__init__(repository, said)
        self.repository, self.said = repository, said

    def __str__(self) -> str:
        return f"no git repository at {self.repository}: correct `repository`: {self.said}"


class RepositoryEmpty(ConfigError):
    """The repository has no commit to start from."""

    def __init__(self, repository: str) -> None:
        super().__init__(repository)
        self.repository = repository

    def __str__(self) -> str:
        return f"the repository {self.repository} has no commits: push a first one"


class RepositoryOfOtherHash(ConfigError):
    """The repository names its objects by another hash than ours do."""

    def __init__(self, repository: str, said: str) -> None:
        super().__init__(repository, said)
        self.repository, self.said = repository, said

    def __str__(self) -> str:
        return (
            f"{self.repository} names its commits by SHA-256, which is not supported: use a repository of git's"
            f" default, SHA-1: {self.said}"
        )


class RepositoryMismatch(ConfigError):
    """The state directory holds copies of another repository."""

    def __init__(self, state: Path, theirs: str, ours: str) -> None:
        super().__init__(state, theirs, ours)
        self.state, self.theirs, self.ours = state, theirs, ours

    def __str__(self) -> str:
        return f"{self.state} belongs to {self.theirs}, not to {self.ours}: use a state directory per repository"


class BranchInTheWay(ConfigError):
    """The repository has a branch that leaves no room for that of a ticket."""

    def __init__(self, repository: str, branch: str, wanted: str) -> None:
        super().__init__(repository, branch, wanted)
        self.repository, self.branch, self.wanted = repository, branch, wanted

    def __str__(self) -> str:
        return (
            f"{self.repository} has a branch `{self.branch}`, so git can make no `{self.wanted}` there for a"
            " ticket's work: rename that branch"
        )


class NoRoomForTickets(BranchInTheWay):
    """It leaves none for that of any ticket."""


class RepositoryUnreachable(RunnerError):
    """The repository did not answer, several times in a row."""

    def __init__(self, repository: str, said: str) -> None:
        super().__init__(repository, said)
        self.repository, self.said = repository, said

    def __str__(self) -> str:
        return f"{self.repository} cannot be reached: {self.said}"


class RepositoryDenied(RunnerError):
    """The repository does not accept our credential."""

    def __init__(self, repository: str, said: str) -> None:
        super().__init__(repository, said)
        self.repository, self.said = repository, said

    def __str__(self) -> str:
        return f"{self.repository} denies access: check the credential: {self.said}"


class BaseMissing(RunnerError):
    """The branch to start from does not exist."""

    def __init__(self, repository: str, base: str | None, existing: Sequence[str]) -> None:
        super().__init__(repository, base, existing)
        self.repository, self.base, self.existing = repository, base, tuple(existing)

    @property
    def fact(self) -> str:
        """What is wrong, without what to do, which depends on who named the branch."""
        what = f"has no branch {self.base!r}" if self.base else "has no default branch"
        return f"{self.repository} {what}; it has {', '.join(self.existing) or 'none'}"

    def __str__(self) -> str:
        return f"{self.fact}: set `base` to one of these"


class WorktreeRefused(RunnerError):
    """The ticket's directory is not, or is no longer, a worktree that can be used without losing something."""

    def __init__(self, ticket_id: str, path: Path, reason: str) -> None:
        super().__init__(ticket_id, path, reason)
        self.ticket_id, self.path, self.reason = ticket_id, path, reason

    def __str__(self) -> str:
        return f"ticket {self.ticket_id}: {self.path} {self.reason}"


class WorktreeLocked(RunnerError):
    """A lock file of git is in the way: a git process lives, or one was killed."""

    def __init__(self, what: str, said: str) -> None:
        super().__init__(what, said)
        self.what, self.said = what, said

    def __str__(self) -> str:
        return f"{self.what}: git is locked: end the process that holds it, or remove the file: {self.said}"


class CommitRefused(RunnerError):
    """The worktree holds what cannot be committed as it is."""

    def __init__(self, ticket_id: str, path: Path, reason: str) -> None:
        super().__init__(ticket_id, path, reason)
        self.ticket_id, self.path, self.reason = ticket_id, path, reason

    def __str__(self) -> str:
        return f"ticket {self.ticket_id}: cannot commit {self.path}: {self.reason}"


class PushRefused(RunnerError):
    """The repository does not take the branch; nothing was forced."""

    def __init__(self, ticket_id: str, repository: str, reason: str) -> None:
        super().__init__(ticket_id, repository, reason)
        self.ticket_id, self.repository, self.reason = ticket_id, repository, reason

    def __str__(self) -> str:
        return f"ticket {self.ticket_id}: {self.repository} did not take the branch: {self.reason}"
