"""What a daemon does that is killed and frozen: claims, runs, money and effects over the real store and ledger.

The outside is a file to which every effect appends its key. A daemon also kills or
freezes itself where it hurts most: between an effect's claim and its sending, and
between its sending and the saving of that.
"""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Concatenate, ParamSpec, TypeVar
from zlib import crc32

import anyio

from runner import commands
from runner.budget import Cost, CostKind
from runner.commands import Command, Verb
from runner.effects import Absent, Done, Ledger, LookedUp, Outcome, Performer, effect_key
from runner.events import Name
from runner.outcome import Outcome as Ended
from runner.session import Kind
from runner.store import (
    LostTicket,
    Rx,
    Store,
    StoreUnavailable,
    Tx,
    claims,
    decisions,
    effects,
    questions,
    queue,
    runs,
    sessions,
    tickets,
)
from runner.store.effects import EffectRow, EffectState, Wish
from runner.store.tickets import Row
from tickets.moves import IllegalMove
from tickets.ticket import Cause, Fact, Finished, Held, PutBack, Reason, Spec, State, Stopped

P = ParamSpec("P")
T = TypeVar("T")

LEASE_S = 0.6
_LIMIT_S = 0.2
"""How long after its claim an effect may still arrive outside."""
_OPEN_TICKETS = 12


@dataclass(frozen=True)
class Arena:
    """Where daemons meet."""

    url: str
    directory: Path
    seed: int

    @property
    def world(self) -> Path:
        """The outside: a line for each effect that it got, each daemon, and each refused write of a lost claim."""
        return self.directory / "world"

    @property
    def closing(self) -> Path:
        """Exists when no more tickets are taken in and nobody is hurt any more."""
        return self.directory / "closing"

    def tell(self, *words: str) -> None:
        """Add a line to the outside, in one piece."""
        descriptor = os.open(self.world, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{' '.join(words)}\n".encode())
        os.close(descriptor)

    def told(self, word: str) -> list[str]:
        """Return what follows `word` in the lines that begin with it."""
        lines = self.world.read_text().splitlines() if self.world.exists() else []
        return [rest for first, _, rest in (line.partition(" ") for line in lines) if first == word]


def price(run: str) -> int:
    """Return what a run costs, whoever reads its bill."""
    return crc32(run.encode()) % 90_000 + 1


async def serve(arena: Arena, slot: int, number: int) -> None:
    """Be a daemon until all is done."""
    store = Store.open(arena.url)
    home = f"host:/home-{slot}"
    rng = Random(f"{arena.seed}/{number}")
    try:
        epoch = await _patiently(store, queue.begin_epoch, "host", home, os.getpid())
        async with anyio.create_task_group() as tasks:
            daemon = _Daemon(arena, store, home, epoch, rng)
            daemon.ledger = Ledger(
                store,
                home=home,
                epoch=epoch,
                performers={
                    "blind": Performer(daemon.perform),
                    "seen": Performer(daemon.perform, daemon.look_up, limit_s=_LIMIT_S),
                },
                limit=50,
                tasks=tasks,
                on_settled=lambda _: None,
            )
            await daemon.ledger.settle_dead()
            arena.tell("up", str(os.getpid()))
            while not await daemon.turn():
                pass
    finally:
        store.close()


async def _patiently(store: Store, fn: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Write, however long the one that has the lock is frozen."""
    while True:
        try:
            return await store.write(fn, *args, **kwargs)
        except StoreUnavailable:
            continue


async def _pass_s(seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await anyio.sleep_forever()


@dataclass
class _Daemon:
    arena: Arena
    store: Store
    home: str
    epoch: int
    rng: Random
    ledger: Ledger = field(init=False)

    async def turn(self) -> bool:
        """Do what there is to do; True when all is over."""
        await self.ledger.perform_due()
        row = await self._write(self._look)
        if row is not None:
            await self._occupy(row)
            return False
        await _pass_s(0.05)
        return not self.ledger.is_busy and self.store.read(self._is_over)

    async def perform(self, row: EffectRow) -> Outcome:
        """Send it, unless it hurts too much."""
        self._hurt(kill=0.04, freeze=0.08)
        self.arena.tell("sent", row.key)
        self._hurt(kill=0.04, freeze=0.02)
        return Done("sent")

    async def look_up(self, row: EffectRow) -> LookedUp:
        """Ask the outside."""
        return Done("there") if row.key in self.arena.told("sent") else Absent()

    def _hurt(self, *, kill: float, freeze: float) -> None:
        drawn = self.rng.random()
        if drawn < kill + freeze and not self.arena.closing.exists():
            os.kill(os.getpid(), signal.SIGKILL if drawn < kill else signal.SIGSTOP)

    async def _write(self, fn: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await _patiently(self.store, fn, *args, **kwargs)

    def _look(self, tx: Tx) -> Row | None:
        """Rescue, take in, be the operator, and claim."""
        for row in claims.orphans(tx, home=self.home, epoch=self.epoch):
            if row.home in {None, self.home}:
                claims.orphan(tx, row.ticket.id, row.ticket.token)
        states = tickets.states(tx)
        if not self.arena.closing.exists() and _open(states) < _OPEN_TICKETS:
            tickets.take_in(tx, "folder", Spec(f"t{len(states)}", "text", priority=self.rng.randint(0, 3)))
        self._operate(tx)
        return claims.take_next(tx, epoch=self.epoch, home=self.home, lease_s=LEASE_S)

    def _is_over(self, tx: Rx) -> bool:
        left = effects.effects(tx, states=effects.OPEN)
        return self.arena.closing.exists() and not left and _open(tickets.states(tx)) == 0

    def _operate(self, tx: Tx) -> None:
        """Be the person who decides what waits for one, and who interferes now and then."""
        for row in tickets.all_rows(tx, states={State.HELD}):
            command = Command(Verb.RELEASE, row.ticket.id)
            match row.ticket.reason:
                case Reason.QUESTION:
                    command = Command(Verb.ANSWER, row.ticket.id, text="yes")
                case Reason.EFFECT | Reason.APPROVAL:
                    self._decide(tx, row.ticket.id)
                    continue
                case _:
                    pass
            commands.perform(tx, command)
        if self.arena.closing.exists():
            for effect in effects.effects(tx, states=effects.OPEN):
                self._decide(tx, effect.ticket)
        elif self.rng.random() < 0.05:
            running = tickets.all_rows(tx, states={State.RUNNING, State.READY})
            verb = self.rng.choice([Verb.HOLD, Verb.RETRY])
            if running:
                commands.perform(tx, Command(verb, self.rng.choice(running).ticket.id))

    def _decide(self, tx: Tx, ticket: str) -> None:
        """Look outside, in the transaction that says so: nobody can send meanwhile what is unknown."""
        for effect in effects.effects(tx, ticket=ticket, states=effects.OPEN):
            if effect.is_unknown:
                seen = effect.key in self.arena.told("sent")
                decision = EffectState.DONE if seen else EffectState.WANTED
                decisions.settle(tx, effect.key, decision, "seen" if seen else None, by="operator")
            elif effect.waits_for_approval:
                decisions.approve(tx, effect.key, by="operator")

    async def _occupy(self, row: Row) -> None:
        """Work on a claimed ticket and report; a claim that is lost tries to report all the same."""
        ticket, token = row.ticket.id, row.ticket.token
        ends: list[Fact] = []
        async with anyio.create_task_group() as claim:
            claim.start_soon(self._beat, row, claim.cancel_scope, ends)
            try:
                ends.append(await self._work(row))
            except LostTicket:
                self.arena.tell("refused", ticket, str(token))
            claim.cancel_scope.cancel()
        try:
            await self._write(self._report, row, ends[0] if ends else Finished(token))
        except IllegalMove:
            self.arena.tell("refused", ticket, str(token))

    async def _beat(self, row: Row, claim: anyio.CancelScope, ends: list[Fact]) -> None:
        while True:
            await _pass_s(LEASE_S / 4)
            ticket = await self._write(claims.renew, row.ticket.id, row.ticket.token, LEASE_S)
            if ticket is None:  # a real daemon stops its run here; this one writes on until it is refused
                return
            if ticket.stop is not None:
                ends.append(Stopped(row.ticket.token))
                claim.cancel()

    async def _work(self, row: Row) -> Fact:
        """Go through a claim as a real one does: its money, its effects, a run, the end."""
        ticket, token = row.ticket.id, row.ticket.token
        for left in await self._write(runs.unended, ticket):
            await self._write(self._end_run, left.id, Ended.ORPHANED)
        if row.ticket.stop is not None:
            return Stopped(token)
        if (waits := await self._waits(row)) is not None:
            return waits
        if row.home is None and self.rng.random() < 0.3:
            await self._write(claims.set_tree, ticket, token, home=self.home, branch="b", base_sha="0")
        run = await self._write(self._begin_run, ticket, token)
        for step in range(self.rng.randint(1, 3)):
            await self._log(row, Name.TOOL_STARTED, run)
            operation = f"step-{step}"
            key = effect_key("folder", ticket, row.ticket.round, operation)
            kind = ("blind", "seen")[crc32(key.encode()) % 2]
            wish = Wish(
                key, ticket, row.ticket.round, operation, kind, {"step": step}, needs_approval=step == 2, run=run
            )
            await self.ledger.request(wish, token=token)
            await _pass_s(self.rng.uniform(0, 0.03))
            await self._log(row, Name.TOOL_ENDED, run)
        if self.rng.random() < 0.1:
            await self._write(questions.ask, ticket, token, "which?", run=run)
        await self._write(self._end_run, run, Ended.FINISHED)
        waits = await self._waits(row)
        if waits is not None:
            return waits
        return PutBack(token, Cause.ATTEMPT) if self.rng.random() < 0.2 else Finished(token)

    async def _waits(self, row: Row) -> Held | None:
        token = row.ticket.token
        if await self._write(questions.open_questions, row.ticket.id):
            return Held(token, Reason.QUESTION)
        left = await self.ledger.settle_ticket(row.ticket.id)
        if any(effect.is_unknown for effect in left):
            return Held(token, Reason.EFFECT)
        return Held(token, Reason.APPROVAL) if any(effect.waits_for_approval for effect in left) else None

    async def _log(self, row: Row, name: Name, run: str) -> None:
        """Log with the token, so that whoever reads the log sees whose it was."""

        def log(tx: Tx) -> None:
            claims.require(tx, row.ticket.id, row.ticket.token)
            tx.log(row.ticket.id, name, run=run, claim=row.ticket.token)

        await self._write(log)

    def _begin_run(self, tx: Tx, ticket: str, token: int) -> str:
        session = f"{ticket}-session"
        known = sessions.last_session(tx, ticket) is not None
        if not known:
            sessions.open_session(tx, ticket, token, session=session, generation=1, prompt_sha="sha")
        return runs.begin_run(
            tx,
            ticket=ticket,
            token=token,
            session=session,
            kind=Kind.RESUMED if known else Kind.FIRST,
            carried_microusd=0,
            transcript_bytes=0,
            allowance_microusd=1_000_000,
        ).id

    def _end_run(self, tx: Tx, run: str, outcome: Ended) -> None:
        runs.end_run(tx, run, outcome=outcome, cost=Cost(price(run), CostKind.MEASURED))

    def _report(self, tx: Tx, row: Row, fact: Fact) -> None:
        """Save the end of a claim and, in the same transaction, the comment that tells of it."""
        ticket, token = row.ticket.id, row.ticket.token
        tickets.apply(tx, ticket, fact)
        if isinstance(fact, Finished | Held):
            operation = f"report.{token}"
            key = effect_key("folder", ticket, row.ticket.round, operation)
            effects.want(tx, Wish(key, ticket, row.ticket.round, operation, "seen", {"token": token}), limit=None)


def _open(states: Mapping[str, State]) -> int:
    return sum(state not in {State.DONE, State.CANCELLED} for state in states.values())
