"""Bring into a ticket's work what its base has got meanwhile, where the configuration asks for it.

What the work is compared with moves with it: `base_sha` is the commit of the base that the branch has.

Knows git and the store. Does not know checks, sessions or delivery.
"""

from dataclasses import dataclass, replace
from functools import partial

from anyio.to_thread import run_sync

from runner import prompt
from runner.events import Name, Value
from runner.parts import Parts
from runner.store import claims
from runner.store.tickets import Row
from runner.worktree import Tree
from tickets.ticket import Reason

_FILES_LOGGED = 20
_FILES_NAMED = 5  # in a note's first line, which is all that the table shows


@dataclass(frozen=True, slots=True)
class Conflict:
    """A merge of the base that waits in the worktree to be resolved."""

    base: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        named = ", ".join(" ".join(file.split()) for file in self.files[:_FILES_NAMED])
        more = f" and {left} more" if (left := len(self.files) - _FILES_NAMED) > 0 else ""
        return f"the branch does not merge with {self.base}; in conflict: {named}{more}\n" + "\n".join(self.files)

    @property
    def reason(self) -> Reason:
        """Why a ticket is held when the agent cannot resolve it."""
        return Reason.DELIVERY

    @property
    def prompt(self) -> str:
        """What the agent is told."""
        return prompt.conflict(self.base, self.files)


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The work after a look at its base."""

    tree: Tree
    is_new: bool = False
    """The base was merged: the checks have not seen this."""
    conflict: Conflict | None = None


async def catch_up(parts: Parts, row: Row, tree: Tree, message: str) -> CaughtUp:
    """Merge the base into the ticket's branch, if it has moved; all work must be committed.

    Raises:
        LostTicket: The claim is not ours any more.
        GitFailed, WorktreeRefused, BaseMissing, ...: See `Repository.merge_base_into`.
    """
    ticket, base = row.ticket, base_of(parts, row)
    update = parts.config.git.submodules == "update"
    merge = await run_sync(partial(parts.repository.merge_base_into, ticket.id, base, message, update=update))
    if merge.conflicts:
        files = list(merge.conflicts[:_FILES_LOGGED])
        facts: dict[str, Value] = {"base": merge.base.name, "base_sha": merge.base.sha, "files": files}
        await parts.store.write(claims.log_event, ticket.id, ticket.token, Name.BASE_CONFLICTED, facts)
        return CaughtUp(tree, conflict=Conflict(f"`{merge.base.name}`", merge.conflicts))
    if merge.base.sha != tree.base_sha:
        await parts.store.write(claims.move_base, ticket.id, ticket.token, base_sha=merge.base.sha, sha=merge.sha)
    return CaughtUp(replace(tree, base_sha=merge.base.sha), is_new=merge.made)


async def conflict_left(parts: Parts, row: Row) -> Conflict | None:
    """Return the merge that an earlier run or claim left to be resolved; None when there is none."""
    files = await run_sync(parts.repository.conflicts, row.ticket.id)
    base = base_of(parts, row)
    return Conflict("its base" if base is None else f"`{base}`", files) if files else None


def base_of(parts: Parts, row: Row) -> str | None:
    """Return the branch that a ticket starts from; None for the repository's own."""
    return row.spec.base or parts.config.git.base
