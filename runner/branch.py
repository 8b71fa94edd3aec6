"""What a claim does in git: the ticket's worktree made, its work committed, merged with the base, and pushed.

Each step is safe to repeat, is done in a thread unless the claim was asked to stop, and
logs what it changed. A stop waits for no other machine.

Knows git and the store. Does not know the agent, the checks or what follows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import ParamSpec, TypeVar

from anyio.to_thread import run_sync

from runner.agent import Interrupted, Stop
from runner.catchup import CaughtUp, Conflict, base_of, catch_up, conflict_left
from runner.events import Name, Value
from runner.parts import Parts
from runner.store import claims, log
from runner.store.tickets import Row
from runner.worktree import CommitRefused, Facts, GitFailed, HangUp, RepositoryUnreachable, Tree, WorktreeRefused

P = ParamSpec("P")
T = TypeVar("T")


class Branch:
    """The branch of a claimed ticket, and its worktree."""

    def __init__(self, parts: Parts, row: Row, stop: Stop) -> None:
        self._hang_up = HangUp()
        self._repository = parts.repository.until(self._hang_up)
        self._parts, self._row, self._stop = replace(parts, repository=self._repository), row, stop
        self._id, self._token = row.ticket.id, row.ticket.token
        self._merges, self._trailer = parts.config.git.on_base_moved == "merge", f"Ticket: {row.ticket.id}"

    async def prepare(self) -> Tree:
        """Make the worktree, or find it as the last claim left it, with all that its base holds filled in."""
        store, repository = self._parts.store, self._repository
        await self._in_thread(repository.unlock, self._id)
        base = base_of(self._parts, self._row)
        tree = await self._in_thread(partial(repository.ensure, self._id, base, base_sha=self._row.base_sha))
        if undone := await self._in_thread(repository.undo_merge, self._id):
            tree = replace(tree, note="; ".join(filter(None, [tree.note, undone])))
        if self._row.base_sha is None:
            await store.write(
                claims.set_tree,
                self._id,
                self._token,
                home=self._parts.home.name,
                branch=tree.branch,
                base_sha=tree.base_sha,
            )
        name = Name.WORKTREE_MADE if tree.made else Name.WORKTREE_REUSED
        await self._log(name, branch=tree.branch, base_sha=tree.base_sha, note=tree.note)
        if not await store.write(log.is_filled, self._id):
            update = self._parts.config.git.submodules == "update"
            filled = await self._in_thread(partial(repository.fill, self._id, tree.base_sha, update=update))
            if filled:
                await self._log(Name.WORKTREE_FILLED, what=[*filled])
        return tree

    async def commit(self, tree: Tree) -> None:
        """Commit what is not committed yet."""
        subject = self._row.spec.title or f"Work on {self._id}"
        message = f"{subject}\n\n{self._trailer}"
        sha = await self._in_thread(self._repository.commit_all, self._id, message)
        if sha is not None:
            await self._log(Name.BRANCH_COMMITTED, sha=sha, branch=tree.branch)

    async def facts(self, tree: Tree) -> Facts:
        """Return what the work is, compared with its base."""
        return await self._in_thread(self._repository.facts, self._id, tree.base_sha)

    async def keep(self, tree: Tree) -> str:
        """Commit the work so far, where git can, and say where it is."""
        try:
            await self.commit(tree)
            facts = await self.facts(tree)
        except (CommitRefused, WorktreeRefused, GitFailed) as error:
            return f"the work so far is in {tree.path}, not all of it committed: {error}"
        if not facts.commits and not facts.uncommitted:
            return "nothing was changed so far"
        return f"the work so far is committed on {tree.branch} in {tree.path}"

    async def conflict(self) -> Conflict | None:
        """Return the merge that waits in the worktree to be resolved, where the base is merged at all."""
        if not self._merges:
            return None
        with self._interrupts():
            return await conflict_left(self._parts, self._row)

    async def catch_up(self, tree: Tree) -> CaughtUp:
        """Merge the base into work that there is, where the configuration asks for it."""
        if not self._merges:
            return CaughtUp(tree)
        await self.commit(tree)
        if not (await self.facts(tree)).changed:
            return CaughtUp(tree)
        with self._interrupts():
            return await catch_up(self._parts, self._row, tree, self._trailer)

    async def push(self) -> str | None:
        """Push, and see the commit at the origin; return what is missing there, None when it is there."""
        pushed = await self._in_thread(self._repository.push, self._id)
        if not await self._in_thread(self._repository.delivered, self._id, pushed.sha):
            return f"the repository does not have {pushed.sha} on {pushed.branch}"
        await self._log(Name.BRANCH_PUSHED, sha=pushed.sha, branch=pushed.branch)
        return None

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what blocks (git) in a thread, unless the claim was asked to stop."""
        with self._interrupts():
            return await run_sync(partial(call, *args, **kwargs))

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Let a stop of the claim end what is inside, and what it asks of the origin.

        Raises:
            Interrupted: The claim was asked to stop.
        """
        try:
            with self._stop.interrupts(self._hang_up.set):
                yield
        except RepositoryUnreachable as error:  # or it was we who did not wait
            if self._hang_up.is_set():
                raise Interrupted from error
            raise

    async def _log(self, name: Name, **payload: Value) -> None:
        await self._parts.store.write(claims.log_event, self._id, self._token, name, payload)
