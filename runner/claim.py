"""One claim of one ticket: prepare, converse, check, deliver.

Each step finds what an earlier claim has done and goes on from there, so a claim
that was killed anywhere is simply followed by another. What comes out is one fact;
occupy.py has it saved.

Knows the runs, git and the commands of the configuration. Does not know the queue,
the source or who else runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from runner import accounts, briefing, caps, run, tools
from runner.agent import Interrupted, Stop
from runner.branch import Branch
from runner.budget import Cap, Scarce, allowance, remedy, told
from runner.catchup import CaughtUp, Conflict
from runner.circles import circling
from runner.effects import Ledger
from runner.errors import ConfigError
from runner.events import Name, finished_conversation
from runner.lines import CHECK, SETUP, FailedLine, Told, run_lines
from runner.outcome import RULES, Next, Outcome, StoppedBy, follow, put_off, weather_delay_s
from runner.parts import Parts, reap
from runner.run import Ran
from runner.store import LostTicket, claims, log, questions, queue, runs, sessions
from runner.store.tickets import Row
from runner.worktree import (
    BaseMissing,
    CommitRefused,
    GitFailed,
    NoRoomForTickets,
    PushRefused,
    RepositoryDenied,
    RepositoryMissing,
    RepositoryUnreachable,
    Tree,
    WorktreeLocked,
    WorktreeRefused,
)
from tickets.ticket import Cause, Expects, Fact, Finished, Held, PutBack, Reason, Stopped

_US = 1_000_000
_NOTE_CHARS = 2_000
_MERGES = 3
"""Of a base that moves on and on, in one claim; then the work is delivered as it was checked last."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Halt:
    """Why no other ticket should be started."""

    note: str
    is_weather: bool = False
    """It passes; else a person has to look."""
    reset_at_us: int | None = None
    """When it passes, if the API said so."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a claim ended."""

    fact: Fact
    halt: Halt | None = None
    """Why no other ticket should be started, None when one may."""


async def work(parts: Parts, ledger: Ledger, row: Row, stop: Stop) -> Report:
    """Do what the ticket still needs, until a fact ends the claim.

    Args:
        parts: Of the daemon.
        ledger: Of the daemon's effects.
        row: The ticket as claimed.
        stop: Set by others to end the claim.

    Raises:
        LostTicket: The claim is not ours any more; nothing may be reported.
    """
    claim = _Claim(parts, ledger, row, stop)
    try:
        fact = await claim.go()
    except Interrupted:
        fact = claim.stopped()
    except (RepositoryUnreachable, WorktreeLocked) as error:
        fact = await claim.put_off(error)
    except (RepositoryDenied, RepositoryMissing, NoRoomForTickets) as error:  # no other ticket would fare better
        claim.halt = Halt(claim.note(str(error)))
        fact = PutBack(row.ticket.token, Cause.START, 0, claim.halt.note)
    except BaseMissing as error:
        # without a name it is what HEAD names, and that of a person's checkout names nothing during their rebase
        own = f"{error.fact}: make that branch, or `cancel` this and add it anew under another id"
        note = str(error) if row.spec.base is None else own
        fact = claim.held(Reason.WORKTREE, note) if error.base else await claim.put_off(error)
    except (WorktreeRefused, ConfigError) as error:
        fact = claim.held(Reason.WORKTREE, str(error))
    except (PushRefused, CommitRefused, GitFailed) as error:
        fact = claim.held(Reason.DELIVERY, str(error))
    return Report(fact, claim.halt)


class _Claim:
    """The steps of a claim; each is safe to repeat, and returns the fact that ends the claim or None to go on."""

    def __init__(self, parts: Parts, ledger: Ledger, row: Row, stop: Stop) -> None:
        self._parts, self._ledger, self._row, self._stop = parts, ledger, row, stop
        self._config, self._spec = parts.config, row.spec
        self._id, self._token = row.ticket.id, row.ticket.token
        self._verify = tuple(row.spec.verify if row.spec.verify is not None else parts.config.verify)
        self._branch = Branch(parts, row, stop)
        self.halt: Halt | None = None

    async def go(self) -> Fact:
        """Take the ticket as far as it goes."""
        await reap(self._parts, self._id)
        await accounts.account(self._parts, self._id)
        if self._row.ticket.stop is not None:
            return Stopped(self._token)
        if (waits := await self._waits_for_a_person()) is not None:
            return waits
        if not await self._finished() and (short := await self._write(caps.shortage, self._config)) is not None:
            return await self._scarce(short)
        tree = await self._branch.prepare()
        return await self._set_up(tree) or await self._converse_until_checked(tree)

    async def _converse_until_checked(self, tree: Tree) -> Fact:
        finished = await self._finished()
        if finished:
            await self._write(queue.leave_probe, self._id)
            self._parts.wake()
        failed: FailedLine | Conflict | None = None
        merges = 0
        while True:
            if not finished:
                ended = await self._converse(tree, failed) or await self._waits_for_a_person()
                if ended is not None:
                    return ended
            finished, failed = True, await self._failed(tree)
            if failed is None:
                caught_up = await self._branch.catch_up(tree) if merges < _MERGES else CaughtUp(tree)
                tree, failed = caught_up.tree, caught_up.conflict
                if caught_up.is_new:
                    merges += 1
                elif failed is None:
                    return await self._deliver(tree)
            if failed is not None:
                if (enough := await self._enough(failed)) is not None:
                    return enough
                finished = False

    async def _enough(self, failed: FailedLine | Conflict) -> Fact | None:
        """Hold the ticket when what failed is not sent back to the agent any more."""
        if await self._write(runs.fix_rounds, self._id) >= self._config.max_fix_rounds:
            return self.held(failed.reason, str(failed))
        said = await self._write(sessions.last_account, self._id)
        check = failed if isinstance(failed, FailedLine) else None
        shown = await circling(self._parts, self._id, said=said or "", failed=check)
        return None if shown is None else self.held(Reason.LOOP, shown)

    async def _failed(self, tree: Tree) -> FailedLine | Conflict | None:
        """Return what keeps the work from delivery."""
        if (conflict := await self._branch.conflict()) is not None:
            return conflict
        return await self._lines(CHECK, self._verify, tree, limit_s=self._config.limits.verify_s)

    async def _finished(self) -> bool:
        return finished_conversation(await self._write(log.round_names, self._id))

    async def _waits_for_a_person(self) -> Fact | None:
        """Settle the ticket's effects, and hold it for a question or an effect that only a person can settle."""
        if open_questions := await self._write(questions.open_questions, self._id):
            return self.held(Reason.QUESTION, "\n\n".join(map(tools.asked, open_questions)))
        with self._stop.interrupts():
            open_effects = await self._ledger.settle_ticket(self._id)
        for reason, waits in (
            (Reason.EFFECT, [row for row in open_effects if row.is_unknown]),
            (Reason.APPROVAL, [row for row in open_effects if row.waits_for_approval]),
        ):
            if waits:
                return self.held(reason, "\n".join(f"{row.key}: {tools.summary(row)}" for row in waits))
        if open_effects:  # the daemon stops: the next one finds out what became of them
            until_us = await self.now_us() + round(weather_delay_s(1) * _US)
            return PutBack(self._token, Cause.WEATHER, until_us, "its effects are under way")
        return None

    async def _set_up(self, tree: Tree) -> Fact | None:
        """Run the set-up commands in a worktree where they have not all passed yet."""
        if not self._config.setup or await self._write(log.is_set_up, self._id):
            return None
        failed = await self._lines(SETUP, self._config.setup, tree, limit_s=self._config.limits.setup_s)
        if failed is None:
            await self._write(claims.log_event, self._id, self._token, Name.SETUP_ENDED, {})
            return None
        return follow(
            Outcome.FAILED,
            self._row.ticket,
            now_us=await self.now_us(),
            attempts=self._config.limits.attempts,
            note=self.note(f"set-up {failed}"),
        )

    async def _converse(self, tree: Tree, failed: FailedLine | Conflict | None) -> Fact | None:
        """Let the agent work; None when it finished, else how the claim ends."""
        with self._stop.interrupts():
            brief = await briefing.brief(self._parts, self._ledger, self._row, tree, verify=self._verify, failed=failed)
        ran = await run.converse(self._parts, self._row, tree, brief, self._stop)
        if isinstance(ran, Scarce):
            return await self._scarce(ran, await self._branch.keep(tree))
        if ran.outcome is Outcome.FINISHED:
            return None
        return await self._ended(ran, tree)

    async def _ended(self, ran: Ran, tree: Tree) -> Fact:
        """Say what follows a run that did not finish its conversation."""
        if RULES[ran.outcome].next is Next.LEAVE:
            return self.stopped()
        if ran.outcome is Outcome.ASKED:
            return await self._waits_for_a_person() or PutBack(self._token, Cause.DRAIN)
        if ran.cap is not None:
            return await self._met(ran.cap, tree)
        note = await self._why(ran, tree)
        if RULES[ran.outcome].next is Next.PAUSE:
            self.halt = Halt(note)
        elif RULES[ran.outcome].next is Next.WEATHER:
            self.halt = Halt(note, is_weather=True, reset_at_us=ran.ending.reset_at_us)
        fact = follow(
            ran.outcome,
            self._row.ticket,
            now_us=await self.now_us(),
            attempts=self._config.limits.attempts,
            failed_starts=await self._write(runs.failed_starts, self._id),
            note=note,
        )
        if isinstance(fact, PutBack) and fact.cause is Cause.ATTEMPT:
            said = "" if ran.ending.result is None else self._parts.redactor.text(ran.ending.result.text)
            if (shown := await circling(self._parts, self._id, said=said)) is not None:
                return self.held(Reason.LOOP, f"{shown}\n{note}")
        return fact

    async def _why(self, ran: Ran, tree: Tree) -> str:
        if ran.outcome is Outcome.LOOPED:
            return self.note(f"{ran.ending.detail}; {await self._branch.keep(tree)}")
        parts, result = [str(ran.outcome), ran.ending.detail], ran.ending.result
        if result is not None and result.api_error_status is not None:
            parts.insert(1, f"HTTP {result.api_error_status}")
        if result is not None and ran.outcome is Outcome.FAILED and not result.is_error:
            parts.insert(1, result.unfinished)
        return self.note(": ".join(part for part in parts if part))

    async def _met(self, cap: Cap, tree: Tree) -> Fact:
        """Keep the work of a run that reached a cap, and say what that means for the ticket."""
        where = await self._branch.keep(tree)
        uses = {use.cap: use for use in await self._write(caps.uses, self._id, self._config)}
        if cap.is_of_ticket:
            return await self._scarce(Scarce(uses[cap]), where)
        left = allowance(uses.values())
        return await self._scarce(left if isinstance(left, Scarce) else Scarce(uses[cap], is_reserved=True), where)

    async def _scarce(self, scarce: Scarce, *also: str) -> Fact:
        """Say what follows a cap that leaves too little: the ticket is held for its own, and waits for those of all."""
        cap = scarce.use.cap
        note = "; ".join((told(scarce.use), *also, remedy(scarce)))
        if cap.is_of_ticket:
            return self.held(Reason.BUDGET, note)
        until_us = accounts.until_us(scarce, await self.now_us(), self._config)
        return PutBack(self._token, Cause.ALLOWANCE, until_us, self.note(note))

    async def _deliver(self, tree: Tree) -> Fact:
        """Commit, push, and see the commit at the origin; done only then."""
        await self._branch.commit(tree)
        if not (await self._branch.facts(tree)).changed:
            if self._spec.expects is Expects.NOTHING:
                return Finished(self._token)
            said = await self._write(sessions.last_account, self._id)
            note = f"the agent finished and nothing differs from the base\n{said or ''}"
            return self.held(Reason.NO_CHANGE, note.strip())
        missing = await self._branch.push()
        return Finished(self._token) if missing is None else self.held(Reason.DELIVERY, missing)

    async def _lines(self, told: Told, commands: Sequence[str], tree: Tree, *, limit_s: float) -> FailedLine | None:
        with self._stop.interrupts():
            return await run_lines(self._parts, self._row.ticket, tree, told, commands, limit_s=limit_s)

    async def _write(self, fn: Callable[..., T], *args: object, **kwargs: object) -> T:
        return await self._parts.store.write(fn, *args, **kwargs)

    async def now_us(self) -> int:
        """Return the time by the store's clock."""
        return await self._parts.store.write(lambda tx: tx.now_us)

    def stopped(self) -> Fact:
        """Report for whoever asked the claim to stop."""
        if self._stop.reason is StoppedBy.LOST:
            raise LostTicket(self._id, self._token)
        if self._stop.reason is StoppedBy.OPERATOR:
            return Stopped(self._token)
        return PutBack(self._token, Cause.DRAIN)

    async def put_off(self, error: Exception) -> PutBack:
        """Return the fact that lets the ticket wait until git can be asked again."""
        return put_off(self._row.ticket, Cause.WEATHER, now_us=await self.now_us(), note=self.note(str(error)))

    def held(self, reason: Reason, note: str) -> Held:
        """Return the fact that holds the ticket, its note bounded and without secrets."""
        return Held(self._token, reason, self.note(note))

    def note(self, text: str) -> str:
        """Return `text` as it may be stored and shown: its first line, and the end of the rest."""
        first, newline, rest = self._parts.redactor.text(text).partition("\n")
        return f"{first[:_NOTE_CHARS]}{newline}{rest[-_NOTE_CHARS:]}"
