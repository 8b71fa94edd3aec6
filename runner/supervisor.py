"""The loop: take in, claim, start, wait, drain.

There is no recovery mode. What a dead daemon left is swept and put back into the
queue at the start, and the next claim of a ticket finds what was done. One ticket's
failure never touches another.

Knows claims, commands and the source. Does not know how a claim works.
"""

import os
import socket
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync
from watchfiles import awatch

from runner import commands, control, log, machine, processes, reports
from runner.accounts import account, let_go
from runner.admission import HOURS, MACHINE, Closed, why_closed
from runner.agent import Stop
from runner.commands import Command, Verb
from runner.config import unknown_tools
from runner.effects import STORE_RETRY_S, Ledger
from runner.errors import ConfigError, Exit
from runner.mirror import Mirror
from runner.occupy import occupy
from runner.outcome import StoppedBy
from runner.parts import Parts, reap
from runner.reports import Told
from runner.signals import Ladder
from runner.store import StoreUnavailable, Tx, claims, questions, queue, tickets
from runner.store.tickets import Row
from runner.upkeep import Daily, Upkeep
from runner.worktree import BaseMissing, RepositoryDenied, RepositoryUnreachable
from tickets.source import Refused, Source
from tickets.ticket import OVER, Released, State

_CLEAN_S = 20.0
"""How long a command waits for what is removed; its client gives up after 30."""


@dataclass
class Supervisor:
    """One start of a daemon."""

    parts: Parts
    source: Source
    told: Told
    once: bool = False
    is_last: bool = False
    """The process ends with it; see `Ladder`."""
    ledger: Ledger | None = None
    epoch: int = 0
    stops: dict[str, Stop] = field(default_factory=dict)
    """Of the claims that are running, by ticket."""
    outcomes: dict[str, State] = field(default_factory=dict)
    """What became of the tickets that were claimed."""
    draining: bool = False
    wake: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)
    """Ends the watch of the queue folder: its thread looks at this often, and heeds a cancellation after 5 s."""
    refused: dict[str, Refused] | None = None
    """As it was last saved; None before this daemon's first look."""
    closed: Closed | None = None
    """Why no ticket could start at the last look."""
    troubles: dict[str, str] = field(default_factory=dict)
    """What was last said of each place that cannot be read."""
    mirror: Mirror = field(init=False)
    upkeep: Daily = field(init=False)

    def __post_init__(self) -> None:
        self.parts = replace(self.parts, wake=self._wake)
        self.mirror = Mirror(self.parts.store, self.source)
        parts = self.parts
        self.upkeep = Daily(Upkeep(parts.config, parts.home, parts.store, parts.repository))

    async def serve(self) -> Exit:
        """Work until told to stop; with `once` until nothing is due."""
        await self._begin()
        async with anyio.create_task_group() as around:
            drain_s, running = self.parts.config.clocks.drain_s, lambda: [*self.stops]
            ladder = Ladder(self._drain, self._interrupt, running, drain_s, is_last=self.is_last)
            await around.start(ladder.obey)
            around.start_soon(self._watch)
            around.start_soon(self.upkeep.go_on)
            await around.start(control.listen, self.parts.home, self._perform)
            async with anyio.create_task_group() as effects_under_way:
                self.ledger = self._ledger(effects_under_way)
                if self.draining:
                    self.ledger.leave()
                await self.ledger.settle_dead()
                async with anyio.create_task_group() as slots:
                    await self._loop(slots, self.ledger)
            self.over.set()
            self.upkeep.leave()
            await self.parts.store.write(queue.end_epoch, self.epoch)
            waiting = await self.parts.store.write(_waits, self.closed)
            around.cancel_scope.cancel()
        return self._exit(waiting=waiting)

    async def _begin(self) -> None:
        """Own the home: what is left of earlier daemons here is ended, accounted for and put back."""
        home = self.parts.home.name
        self.epoch = await self.parts.store.write(queue.begin_epoch, socket.gethostname(), home, os.getpid())
        left = await run_sync(processes.find, str(self.parts.home.path))
        async with anyio.create_task_group() as sweep:
            for ticket in {found.cookie.ticket for found in left if found.cookie.kind == "agent"}:
                sweep.start_soon(self._sweep, ticket)
        await account(self.parts)
        await self.parts.store.write(_orphan_all, home, self.epoch, self.told)
        await self.parts.store.write(let_go, home, self.parts.config)
        self.mirror.changed(*await self.parts.store.write(tickets.states))
        await run_sync(self.parts.repository.prepare)
        await self._see_base()
        pause = await self.parts.store.write(queue.paused)
        if pause is not None:
            log.warn(
                "queue.is_paused",
                reason=pause.reason,
                by=pause.by,
                note=pause.title,
                until_us=pause.until_us,
                end="ticket-runner resume",
            )

    async def _sweep(self, ticket: str) -> None:
        try:
            await reap(self.parts, ticket)
        except processes.ProcessesRemain as error:  # its next claim sweeps again, and starts nothing beside them
            log.warn("processes.remain", ticket=ticket, error=str(error))

    async def _see_base(self) -> None:
        """Refuse a configured base that is not there, before any ticket is held for it."""
        try:
            await run_sync(self.parts.repository.fetch_base, self.parts.config.git.base)
        except BaseMissing as error:
            raise ConfigError(f"git.base: {error}") from error
        except (RepositoryUnreachable, RepositoryDenied) as error:
            log.warn("repository.unreachable", error=str(error))

    def _ledger(self, tasks: TaskGroup) -> Ledger:
        parts = self.parts
        return Ledger(
            parts.store,
            home=parts.home.name,
            epoch=self.epoch,
            performers=parts.performers,
            limit=parts.config.limits.effects,
            tasks=tasks,
            on_settled=self._changed,
        )

    def _changed(self, ticket: str) -> None:
        """Look again at a ticket whose state may have changed outside of a claim."""
        self.mirror.changed(ticket)
        self._wake()

    def _wake(self) -> None:
        """Let the loop look again at once."""
        self.wake.set()

    async def _loop(self, slots: TaskGroup, ledger: Ledger) -> None:
        while True:
            self.wake = anyio.Event()
            try:
                sleep_s = await self._turn(slots, ledger)
            except StoreUnavailable as error:
                log.warn("store.unavailable", error=str(error), retry_s=STORE_RETRY_S)
                sleep_s = STORE_RETRY_S
            if sleep_s is None:
                return
            with anyio.move_on_after(sleep_s):
                await self.wake.wait()

    async def _turn(self, slots: TaskGroup, ledger: Ledger) -> float | None:
        """Take in and start what can be; return how long to sleep at most, None when the work is over."""
        if not self.draining:
            self.mirror.changed(*await self.parts.store.write(questions.answer_overdue, self.parts.home.name))
        await self.mirror.converge()
        await ledger.perform_due()
        ripens_in_s = None if self.draining else await self._take_in()
        self.closed = await self._why_closed()
        while not (self.draining or self.closed or self._is_full):
            row = await self._claim()
            if row is None:
                break
            self.stops[row.ticket.id] = stop = Stop()
            slots.start_soon(self._occupy, ledger, row, stop)
        if self.draining and not self.stops:
            await self.mirror.converge()  # what ended while this turn looked around
            return None
        if self.once and ripens_in_s is None and not (self.stops or ledger.is_busy or self.mirror.is_behind):
            return None
        return min(await self._until_due_s(), ripens_in_s if ripens_in_s is not None else self.parts.config.poll_s)

    @property
    def _is_full(self) -> bool:
        return len(self.stops) >= self.parts.config.concurrency

    async def _why_closed(self) -> Closed | None:
        """Look at all that can keep tickets from starting; what no event says is logged once.

        What a daemon of another home claimed and left is put back, so that it can start here, and what waits by a clock
        that was put back since is let go.
        """
        config = self.parts.config
        shortage = await run_sync(machine.short, config)

        def of_now(tx: Tx) -> Closed | None:
            _orphan_all(tx, self.parts.home.name, self.epoch, self.told)
            for ticket in claims.misdated(tx, self.parts.home.name):
                tickets.apply(tx, ticket, Released())
            return why_closed(queue.paused(tx), config.hours, shortage, now_us=tx.now_us)

        closed = await self.parts.store.write(of_now)
        before = None if self.closed is None else self.closed.reason
        if closed is not None and closed.reason in {HOURS, MACHINE} and closed.reason != before:
            log.warn("queue.closed", reason=closed.reason, note=closed.note, until_us=closed.until_us)
        return closed

    async def _claim(self) -> Row | None:
        return await self.parts.store.write(
            partial(
                claims.take_next,
                epoch=self.epoch,
                home=self.parts.home.name,
                lease_s=self.parts.config.clocks.lease_s,
            )
        )

    async def _until_due_s(self) -> float:
        poll_s, home, is_full, closed = self.parts.config.poll_s, self.parts.home.name, self._is_full, self.closed

        def until(tx: Tx) -> float:
            open_us = claims.next_due_us(tx, home) if closed is None else closed.until_us
            claim_us = None if is_full else open_us
            answer_us = None if self.draining else questions.next_deadline_us(tx, home)
            dues_us = [due_us for due_us in (claim_us, answer_us) if due_us is not None]
            return max((min(dues_us) - tx.now_us) / 1e6, 0.05) if dues_us else poll_s

        return await self.parts.store.write(until)

    async def _take_in(self) -> float | None:
        """Save what is new in the source; return when something still being written can be looked at again."""
        try:
            intake = await run_sync(self.source.take, lambda ticket: self.parts.store.read(tickets.known, ticket))
        except OSError as error:
            self._trouble("queue.not_read", str(error))
            return None
        self._trouble("queue.not_read", "")
        for spec in intake.found:
            if unknown := unknown_tools(spec.tools or ()):
                log.warn("ticket.has_unknown_tools", ticket=spec.id, tools=unknown)
            await self.parts.store.write(tickets.take_in, self.source.name, spec)
        refused = {refusal.where: refusal for refusal in intake.refused}
        if refused != self.refused:
            await self.parts.store.write(queue.refuse, tuple(intake.refused))
            self.refused = refused
        return intake.ripens_in_s

    async def _occupy(self, ledger: Ledger, row: Row, stop: Stop) -> None:
        """Give a slot to one claimed ticket until its end is saved."""
        ticket = row.ticket.id
        try:
            state = await occupy(self.parts, ledger, row, stop, self.told)
            if state is not None:
                self.outcomes[ticket] = state
            if state in OVER:
                await self.upkeep.forget_tmp(ticket)
        finally:
            del self.stops[ticket]
            self._changed(ticket)

    async def _perform(self, command: Command) -> str:
        """Carry out a command that came through the socket."""
        reply = await self.parts.store.write(commands.perform, command)
        if command.verb is Verb.CLEAN:
            with anyio.move_on_after(_CLEAN_S):
                return "\n".join(await self.upkeep.ask())
        if reply.stop and command.ticket in self.stops:
            self.stops[command.ticket].set(StoppedBy.OPERATOR)
        self._changed(command.ticket or reply.ticket)
        return reply.text

    async def _watch(self) -> None:
        """Wake the loop when the queue folder changes; polling is the net under it."""
        while not self.over.is_set():
            changes = awatch(self.parts.home.queue, recursive=False, debounce=50, step=20, stop_event=self.over)
            try:
                async for _ in changes:
                    self._trouble("queue.not_watched", "")
                    self.wake.set()
            except (OSError, RuntimeError) as error:  # watchfiles' own failures are RuntimeErrors
                self._trouble("queue.not_watched", str(error))
            with anyio.move_on_after(self.parts.config.poll_s):
                await self.over.wait()

    def _trouble(self, name: str, error: str) -> None:
        """Say what keeps a place from being read when that has changed; "" when nothing does."""
        if error and error != self.troubles.get(name):
            log.warn(name, error=error)
        self.troubles[name] = error

    def _drain(self) -> None:
        """Start nothing more."""
        self.draining = True
        self.upkeep.leave()
        self.wake.set()
        if self.ledger is not None:
            self.ledger.leave()

    def _interrupt(self) -> None:
        """Stop what runs; it stays resumable."""
        for stop in self.stops.values():
            stop.set(StoppedBy.DRAIN)

    def _exit(self, *, waiting: bool) -> Exit:
        if not self.once:
            return Exit.OK
        if State.HELD in self.outcomes.values():
            return Exit.TICKET_HELD
        if waiting or State.READY in self.outcomes.values():
            return Exit.FAILED
        return Exit.OK if self.outcomes else Exit.NOTHING_TO_DO


def _orphan_all(tx: Tx, home: str, epoch: int, told: Told) -> None:
    for row in claims.orphans(tx, home=home, epoch=epoch):
        if row.is_of(home):
            reports.give_up(tx, row, told)


def _waits(tx: Tx, closed: Closed | None) -> bool:
    return (closed or queue.paused(tx)) is not None and State.READY in tickets.states(tx).values()
