"""A store that daemons, lost claims, operators and the clock use in any order, beside a model of what must come of it.

The model knows tickets through their pure `advance`; owners, leases, money, questions
and effects it keeps by itself. Each step says whether it must be accepted, and after
each step everything in the store is compared.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from runner.budget import Cost, CostKind
from runner.commands import Command, NotPossible, Verb, move, perform
from runner.events import Event, Name, fold_log
from runner.outcome import Outcome
from runner.session import Kind
from runner.store import (
    LostTicket,
    Rx,
    Store,
    Tx,
    audit,
    claims,
    effects,
    log,
    questions,
    queue,
    runs,
    schema,
    sessions,
    tickets,
)
from runner.store.decisions import NotOpen, NotPerformed
from runner.store.effects import MAX_TRIES, OPEN, EffectRow, EffectState, TooManyEffects, Verdict, Wish
from runner.store.questions import NoQuestion
from tests.lives import facts
from tests.stores import SECOND, Clock
from tickets.moves import IllegalMove, advance
from tickets.ticket import (
    Answered,
    Cause,
    Claimed,
    Fact,
    Finished,
    FreshUsed,
    Held,
    Orphaned,
    PutBack,
    Reason,
    Settled,
    Spec,
    State,
    Stopped,
    Ticket,
)

PICK = st.integers(0, 99)
"""Which of those that there are."""
WITH_TICKETS = precondition(lambda self: bool(self.known))
WITH_RUNS = precondition(lambda self: any(known.runs for known in self.known.values()))
WITH_EFFECTS = precondition(lambda self: bool(self.effects))
LEASE_S = 10
EFFECTS = 3
"""That a ticket may have."""
HOMES = ("host:/one", "host:/two")
Claim = tuple[str, int, str]
"""Ticket, token and home."""


@dataclass
class Effect:
    """What we know of an effect without looking."""

    ticket: str
    content: str
    needs_approval: bool
    state: EffectState = EffectState.WANTED
    approved: bool = False
    unknown: bool = False
    attempts: int = 0

    @property
    def waits(self) -> bool:
        """A person has to approve it."""
        return self.state is EffectState.WANTED and self.needs_approval and not self.approved

    def is_free(self) -> bool:
        """It can be claimed."""
        return self.state is EffectState.WANTED and not self.waits

    def is_claim(self, row: EffectRow) -> bool:
        """`row` was returned by the claim that stands."""
        return self.state is EffectState.CLAIMED and self.attempts == row.attempts


@dataclass
class Known:
    """What we know of a ticket without looking."""

    ticket: Ticket
    priority: int
    taken_us: int
    present: Claim | None = None
    owner: int = 0
    lease_until_us: int = 0
    home: str | None = None
    runs: dict[str, int | None] = field(default_factory=dict)
    """What each cost; None until that is known."""
    asked: set[str] = field(default_factory=set)


@dataclass
class Weather:
    """What the queue waits for."""

    until_us: int
    waits: int
    probe: Claim | None = None


class Machine(RuleBasedStateMachine):
    """A store, and a model that knows what must come of each step."""

    store: ClassVar[Store]
    clock: ClassVar[Clock]

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Known] = {}
        self.effects: dict[str, Effect] = {}
        self.epochs: dict[str, int] = {}
        self.claims: list[Claim] = []
        self.handles: list[EffectRow] = []
        """What claims of effects returned."""
        self.paused = False
        """By a person."""
        self.weather: Weather | None = None
        self.clock.now_us = Clock.now_us  # a game that is played again has to go the same way
        self.store.transact(_wipe)
        for home in HOMES:
            self.start(home)
        for priority in (0, 1):
            self.take_in(priority, 0)

    def a_ticket(self, which: int) -> str:
        """Return one of the tickets."""
        return [*self.known][which % len(self.known)]

    def a_claim(self, which: int) -> Claim:
        """Return a claim, in most cases a present one, claiming if there is none and something is due."""
        if which % 4 == 0 and self.claims:
            return self.claims[which % len(self.claims)]
        if not self._present:
            self.claim(HOMES[which % len(HOMES)])
        claims = self._present or self.claims or [("t0", 0, HOMES[0])]
        return claims[which % len(claims)]

    @property
    def _present(self) -> list[Claim]:
        return [known.present for known in self.known.values() if known.present is not None]

    def a_run(self, which: int) -> str:
        """Return one of the runs."""
        begun = [run for known in self.known.values() for run in known.runs]
        return begun[which % len(begun)]

    def a_key(self, which: int, likely: Callable[[Effect], bool]) -> str:
        """Return the key of an effect, in most cases of one that is `likely`."""
        fit = [key for key, each in self.effects.items() if likely(each)]
        keys = fit if fit and which % 4 else [*self.effects]
        return keys[which % len(keys)]

    def a_handle(self, which: int) -> EffectRow:
        """Return what a claim of an effect returned, in most cases of one that stands, claiming if there is none."""
        if which % 4 == 0 and self.handles:
            return self.handles[which % len(self.handles)]
        if not self._standing:
            self.claim_effect(which, HOMES[0])
        handles = self._standing or self.handles or [self.store.read(effects.get, self.a_key(which, Effect.is_free))]
        return handles[which % len(handles)]

    @property
    def _standing(self) -> list[EffectRow]:
        return [row for row in self.handles if self.effects[row.key].is_claim(row)]

    def expect(self, problem: type[Exception] | None, fn: Callable[..., object], *args: object, **kw: object) -> object:
        """Do something in a transaction that must, or must not, be refused."""
        if problem is None:
            return self.store.transact(fn, *args, **kw)
        with pytest.raises(problem):
            self.store.transact(fn, *args, **kw)
        return None

    def happens(self, ticket: str, fact: Fact) -> None:
        """Remember a fact."""
        known = self.known[ticket]
        known.ticket = advance(known.ticket, fact)
        if known.ticket.state is not State.RUNNING:
            known.present = None

    def try_fact(self, ticket: str, fact: Fact) -> None:
        """Apply a fact that must be accepted exactly if the ticket's life allows it."""
        try:
            advance(self.known[ticket].ticket, fact)
        except IllegalMove:
            self.expect(IllegalMove, tickets.apply, ticket, fact)
        else:
            self.store.transact(tickets.apply, ticket, fact)
            self.happens(ticket, fact)

    def lost(self, claim: Claim) -> type[Exception] | None:
        """Return what a write of this claim must raise."""
        return None if self.known[claim[0]].present == claim else LostTicket

    @rule(seconds=st.sampled_from([1, 4, LEASE_S + 1, 100]))
    def pass_time(self, seconds: int) -> None:
        """Let time pass."""
        self.clock.pass_s(seconds)

    @precondition(lambda self: len(self.known) < 6)
    @rule(priority=st.integers(0, 2), delay_s=st.sampled_from([0, 0, 5]))
    def take_in(self, priority: int, delay_s: int) -> None:
        """Take a ticket in, once."""
        ticket, now_us = f"t{len(self.known)}", self.clock.now_us
        spec = Spec(ticket, "text", priority=priority, not_before_us=now_us + delay_s * SECOND if delay_s else 0)
        assert self.store.transact(tickets.take_in, "folder", spec) is not None
        assert self.store.transact(tickets.take_in, "folder", replace(spec, id=ticket.upper())) is None
        self.known[ticket] = Known(Ticket(ticket, not_before_us=spec.not_before_us), priority, now_us)
        self.clock.pass_s(0.001)  # so that their ages differ

    @rule(home=st.sampled_from(HOMES))
    def start(self, home: str) -> None:
        """Let the home's daemon die, and another start and put back what that left."""
        epoch = self.epochs[home] = self.store.transact(queue.begin_epoch, "host", home, 1)
        self._put_back(home, epoch)

    @rule(home=st.sampled_from(HOMES))
    def rescue(self, home: str) -> None:
        """Put back what dead daemons left, or those of other homes whose leases have ended."""
        self._put_back(home, self.epochs[home])

    def _put_back(self, home: str, epoch: int) -> None:
        dead = {
            id_
            for id_, known in self.known.items()
            if known.present is not None and known.owner != epoch
            if known.present[2] == home or known.lease_until_us < self.clock.now_us
        }
        found = self.store.transact(claims.orphans, home=home, epoch=epoch)
        assert {row.ticket.id for row in found} == dead
        for row in found:
            if row.home in {None, home}:
                progressed = self._progressed(row.ticket.id)
                self.store.transact(claims.orphan, row.ticket.id, row.ticket.token)
                self.happens(row.ticket.id, Orphaned(row.ticket.token, progressed))

    def _progressed(self, ticket: str) -> bool:
        names = self.store.read(log.names_since, ticket, Name.TICKET_CLAIMED)
        return bool({Name.TOOL_STARTED, Name.QUESTION_ASKED} & {*names}) or any(
            name.startswith("effect.") or name is Name.QUESTION_ANSWERED for name in names
        )

    @rule(home=st.sampled_from(HOMES))
    def claim(self, home: str) -> None:
        """Claim the ticket whose turn it is, in a home that may have it."""
        due = [
            known
            for known in self.known.values()
            if known.ticket.state is State.READY and known.ticket.not_before_us <= self.clock.now_us
            if known.home in {None, home}
        ]
        row = self.store.transact(claims.take_next, epoch=self.epochs[home], home=home, lease_s=LEASE_S)
        weather = self.weather
        waits = weather is not None and (self.clock.now_us < weather.until_us or self._probe is not None)
        if self.paused or waits or not due:
            assert row is None
            return
        known = min(due, key=lambda each: (each.ticket.waits if weather else 0, -each.priority, each.taken_us))
        assert row is not None
        assert row.ticket.id == known.ticket.id
        self.happens(row.ticket.id, Claimed(known.ticket.token + 1))
        known.present = (row.ticket.id, row.ticket.token, home)
        known.owner, known.lease_until_us = self.epochs[home], self.clock.now_us + LEASE_S * SECOND
        self.claims.append(known.present)
        if weather is not None:
            weather.probe = known.present

    @property
    def _probe(self) -> str | None:
        """The ticket whose claim tries whether the weather is over, while that stands."""
        probe = None if self.weather is None else self.weather.probe
        if probe is None:
            return None
        known = self.known[probe[0]]
        return probe[0] if known.present == probe and known.lease_until_us >= self.clock.now_us else None

    @WITH_TICKETS
    @rule(which=PICK)
    def meet_the_weather(self, which: int) -> None:
        """End a claim in weather: many that meet it at a time are one pause, and one that its probe meets is longer."""
        claim = self.a_claim(which)
        fact = PutBack(claim[1], Cause.WEATHER)
        if self.lost(claim) is not None:
            self.report(claim, fact)
            return
        self.store.transact(_storm, claim[0], fact)
        self.happens(claim[0], fact)
        before, now_us = self.weather, self.clock.now_us
        if not self.paused and self._probe is None and (before is None or now_us >= before.until_us):
            waits = 1 if before is None else before.waits + 1
            self.weather = Weather(now_us + min(30 * 2 ** (waits - 1), 1800) * SECOND, waits)

    @WITH_TICKETS
    @rule(which=PICK)
    def hear(self, which: int) -> None:
        """Let the model speak to a ticket: to the probe it says that the weather is over."""
        ticket = self._probe if which % 2 and self._probe is not None else self.a_ticket(which)
        is_over = ticket == self._probe
        assert self.store.transact(queue.hear, ticket) == is_over
        if is_over:
            self.weather = None

    @WITH_TICKETS
    @rule(which=PICK)
    def renew(self, which: int) -> None:
        """Renew a claim: only the present one can be."""
        claim = self.a_claim(which)
        renewed = self.store.transact(claims.renew, claim[0], claim[1], LEASE_S)
        assert (renewed is None) == (self.lost(claim) is not None)
        if renewed is not None:
            self.known[claim[0]].lease_until_us = self.clock.now_us + LEASE_S * SECOND

    @WITH_TICKETS
    @rule(which=PICK)
    def make_a_tree(self, which: int) -> None:
        """Tie a ticket to a home: only the present claim can."""
        claim = self.a_claim(which)
        problem = self.lost(claim)
        self.expect(problem, claims.set_tree, claim[0], claim[1], home=claim[2], branch="b", base_sha="0")
        if problem is None:
            self.known[claim[0]].home = claim[2]

    @WITH_TICKETS
    @rule(which=PICK)
    def work(self, which: int) -> None:
        """Log for a claim: only the present one can."""
        claim = self.a_claim(which)
        self.expect(self.lost(claim), _log_claimed, claim)

    @WITH_TICKETS
    @rule(which=PICK, kind=st.sampled_from([Finished, FreshUsed, Stopped]))
    def finish(self, which: int, kind: type[Finished | FreshUsed | Stopped]) -> None:
        """Report for a claim: what comes from one that is lost is refused."""
        claim = self.a_claim(which)
        self.report(claim, kind(claim[1]))

    @WITH_TICKETS
    @rule(which=PICK, cause=st.sampled_from(Cause))
    def put_back(self, which: int, cause: Cause) -> None:
        """Put a ticket back for a claim: only the present one can."""
        claim = self.a_claim(which)
        self.report(claim, PutBack(claim[1], cause, 5, "note"))

    @WITH_TICKETS
    @rule(which=PICK, reason=st.sampled_from([Reason.QUESTION, Reason.EFFECT, Reason.APPROVAL, *Reason]))
    def hold(self, which: int, reason: Reason) -> None:
        """Hold a ticket for a claim: only the present one can."""
        claim = self.a_claim(which)
        self.report(claim, Held(claim[1], reason, "note"))

    def report(self, claim: Claim, fact: Fact) -> None:
        """Apply a claim's fact, which must be refused if that is lost."""
        if self.lost(claim) is not None:
            self.expect(IllegalMove, tickets.apply, claim[0], fact)
        else:
            self.try_fact(claim[0], fact)

    @WITH_TICKETS
    @rule(which=PICK, fact=facts(st.integers(0, 3)))
    def any_fact(self, which: int, fact: Fact) -> None:
        """Apply any fact, sensible or not."""
        ticket = self.a_ticket(which)
        if not isinstance(fact, Claimed):  # claims come from take_next, with their owner
            self.try_fact(ticket, fact)

    @WITH_TICKETS
    @rule(which=PICK)
    def begin_run(self, which: int) -> None:
        """Begin a run: only the present claim can."""
        claim = self.a_claim(which)
        problem = self.lost(claim)
        run = self.expect(problem, _begin_run, claim)
        if problem is None:
            assert isinstance(run, str)
            self.known[claim[0]].runs[run] = None

    @WITH_RUNS
    @rule(which=PICK, microusd=st.integers(0, 10_000))
    def end_run(self, which: int, microusd: int) -> None:
        """Say what a run cost, whoever has its ticket by now: the first word counts."""
        run = self.a_run(which)
        costs = self.known[run.partition("/")[0]].runs
        cost = Cost(microusd, CostKind.MEASURED)
        accepted = self.store.transact(runs.end_run, run, outcome=Outcome.FINISHED, cost=cost)
        assert accepted == (costs[run] is None)
        if accepted:
            costs[run] = microusd

    @WITH_TICKETS
    @rule(
        which=PICK,
        operation=st.sampled_from("abcd"),
        content=st.sampled_from("xy"),
        approval=st.booleans(),
    )
    def want(self, which: int, operation: str, content: str, approval: bool) -> None:
        """Want an effect: only the present claim can, and each key and each content is one effect."""
        claim = self.a_claim(which)
        ticket = claim[0]
        key = f"folder/{ticket}/1/{operation}"
        wish = Wish(key, ticket, 1, operation, "deploy", {"text": content}, needs_approval=approval)
        there = self.effects.get(key)
        twins = [k for k, each in self.effects.items() if (each.ticket, each.content) == (ticket, content)]
        problem = self.lost(claim)
        if problem is None and there is None and not twins and self._count(ticket) >= EFFECTS:
            problem = TooManyEffects
        answer = self.expect(problem, _want, claim, wish)
        if problem is not None:
            return
        assert isinstance(answer, tuple)
        row, verdict = answer
        if there is None and not twins:
            assert (row.key, verdict) == (key, Verdict.NEW)
            self.effects[key] = Effect(ticket, content, approval)
            return
        if there is not None and there.content != content:
            assert (row.key, verdict) == (key, Verdict.CONFLICT)
            return
        stands = there if there is not None else self.effects[twins[0]]
        assert row.key == (key if there is not None else twins[0])
        if stands.state is EffectState.FAILED and stands.attempts < MAX_TRIES:
            assert verdict is Verdict.NEW
            stands.state, stands.unknown, stands.approved = EffectState.WANTED, False, False
        else:
            assert verdict is (Verdict.SAME if there is not None else Verdict.TWIN)

    def _count(self, ticket: str) -> int:
        return sum(each.ticket == ticket for each in self.effects.values())

    @WITH_EFFECTS
    @rule(which=PICK, home=st.sampled_from(HOMES))
    def claim_effect(self, which: int, home: str) -> None:
        """Claim an effect to perform it: one can, while it is wanted and nobody has to approve it."""
        key = self.a_key(which, Effect.is_free)
        known = self.effects[key]
        row = self.store.transact(effects.claim, key, epoch=self.epochs[home])
        assert (row is not None) == known.is_free()
        self._claimed(known, row)

    @WITH_EFFECTS
    @rule(which=PICK, home=st.sampled_from(HOMES))
    def reclaim_effect(self, which: int, home: str) -> None:
        """Take over the claim of an effect: only one that still stands can be."""
        handle = self.a_handle(which)
        known = self.effects[handle.key]
        row = self.store.transact(effects.reclaim, handle, epoch=self.epochs[home])
        assert (row is not None) == known.is_claim(handle)
        self._claimed(known, row)

    def _claimed(self, known: Effect, row: EffectRow | None) -> None:
        if row is None:
            return
        known.state, known.attempts, known.unknown = EffectState.CLAIMED, known.attempts + 1, False
        assert row.attempts == known.attempts
        self.handles.append(row)

    @WITH_EFFECTS
    @rule(which=PICK, state=st.sampled_from([EffectState.DONE, EffectState.FAILED]))
    def settle_effect(self, which: int, state: EffectState) -> None:
        """Save what became of an effect: only for the claim that stands."""
        handle = self.a_handle(which)
        known = self.effects[handle.key]
        expected = known.is_claim(handle)
        assert self.store.transact(effects.settle, handle, state, "so") == expected
        if expected:
            known.state, known.unknown = state, False
            self._let_go(known.ticket)

    @WITH_EFFECTS
    @rule(which=PICK)
    def leave_effect(self, which: int) -> None:
        """Save that an effect may have happened: only for the claim that stands."""
        handle = self.a_handle(which)
        known = self.effects[handle.key]
        expected = known.is_claim(handle)
        assert self.store.transact(effects.leave_unknown, handle, "it died") == expected
        known.unknown = known.unknown or expected

    def _let_go(self, ticket: str) -> None:
        known = self.known[ticket].ticket
        waits = known.state is State.HELD and known.reason in {Reason.EFFECT, Reason.APPROVAL}
        if waits and not any(each.ticket == ticket and each.state in OPEN for each in self.effects.values()):
            self.happens(ticket, Settled())

    @WITH_TICKETS
    @rule(which=PICK, text=st.sampled_from(["which?", "why?"]))
    def ask(self, which: int, text: str) -> None:
        """Ask a person: only the present claim can, and the same thing once while it is open."""
        claim = self.a_claim(which)
        problem = self.lost(claim)
        self.expect(problem, _ask, claim, text)
        if problem is None:
            self.known[claim[0]].asked.add(text)

    @WITH_TICKETS
    @rule(which=PICK)
    def answer(self, which: int) -> None:
        """Answer what a ticket asked."""
        ticket = self.a_ticket(which)
        known = self.known[ticket]
        problem = None if known.asked else NoQuestion
        self.expect(problem, perform, Command(Verb.ANSWER, ticket, text="so"))
        if problem is None:
            known.asked.clear()
            if known.ticket.state is State.HELD and known.ticket.reason is Reason.QUESTION:
                self.happens(ticket, Answered())

    @WITH_EFFECTS
    @rule(which=PICK)
    def approve(self, which: int) -> None:
        """Approve an effect that waits for it."""
        key = self.a_key(which, lambda each: each.waits)
        known = self.effects[key]
        problem = None if known.waits else NotOpen
        self.expect(problem, perform, Command(Verb.APPROVE, key=key))
        known.approved = known.approved or problem is None

    @WITH_EFFECTS
    @rule(which=PICK, decision=st.sampled_from(["done", "retry", "abandon"]))
    def decide(self, which: int, decision: str) -> None:
        """Say what became of an effect, where that is not known or nobody performs it yet."""
        key = self.a_key(which, lambda each: each.unknown or each.waits)
        known = self.effects[key]
        unknown = known.state is EffectState.CLAIMED and known.unknown
        wanted = known.state is EffectState.WANTED
        decidable = unknown or (wanted and (decision == "abandon" or (decision == "done" and not known.waits)))
        problem = None if decidable else NotPerformed if known.waits else NotOpen
        self.expect(problem, perform, Command(Verb.SETTLE, key=key, decision=decision, text="so"))
        if problem is None:
            states = {"done": EffectState.DONE, "retry": EffectState.WANTED, "abandon": EffectState.ABANDONED}
            known.state, known.unknown = states[decision], False
            self._let_go(known.ticket)

    @WITH_TICKETS
    @rule(which=PICK, verb=st.sampled_from([Verb.RETRY, Verb.RELEASE, Verb.HOLD, Verb.CANCEL]), fresh=st.booleans())
    def steer(self, which: int, verb: Verb, fresh: bool) -> None:
        """Give a command: it makes the fact that the table says, or is refused and changes nothing."""
        ticket = self.a_ticket(which)
        command = Command(verb, ticket, fresh=fresh)
        try:
            fact = move(command, self.known[ticket].ticket)
        except NotPossible:
            self.expect(NotPossible, perform, command)
        else:
            running = self.known[ticket].ticket.state is State.RUNNING
            assert self.store.transact(perform, command).stop == running
            self.happens(ticket, fact)

    @rule(pause=st.sampled_from([False, False, False, True]))
    def pause(self, pause: bool) -> None:
        """Pause the queue, or let it go on; either ends a wait for the weather."""
        self.store.transact(perform, Command(Verb.PAUSE if pause else Verb.RESUME))
        self.paused, self.weather = pause, None

    @invariant()
    def rows_logs_money_and_claims_agree(self) -> None:
        """Compare everything with what must be there."""
        self.store.read(self._compare)

    def _compare(self, rx: Rx) -> None:
        logs: dict[str, list[Event]] = {id_: [] for id_ in ("", *self.known)}
        for entry in log.events(rx, limit=100_000):
            logs[entry.event.ticket].append(entry.event)
        for row in tickets.all_rows(rx):
            id_ = row.ticket.id
            known, events = self.known[id_], logs.pop(id_)
            assert row.ticket == known.ticket == fold_log(id_, events)
            assert [event.seq for event in events] == [*range(1, len(events) + 1)]
            assert runs.spent(rx, id_) == sum(cost or 0 for cost in known.runs.values())
            held = (row.owner, row.lease_until_us)
            assert held == ((known.owner, known.lease_until_us) if known.present else (None, None))
            assert {question.text for question in questions.open_questions(rx, id_)} == known.asked
            tokens = [event.payload["token"] for event in events if event.name is Name.TICKET_CLAIMED]
            assert tokens == [*range(1, row.ticket.token + 1)]
        assert [*logs] == [""]
        found = {
            row.key: (row.state, row.attempts, row.is_unknown, row.waits_for_approval) for row in effects.effects(rx)
        }
        expected = {key: (each.state, each.attempts, each.unknown, each.waits) for key, each in self.effects.items()}
        assert found == expected
        pause = queue.paused(rx)
        assert (pause is not None) == (self.paused or self.weather is not None)
        if pause is not None and self.weather is not None:
            weather = (self.weather.until_us, self.weather.waits, self._probe)
            assert (pause.until_us, pause.waits, pause.probe) == weather
        stored, logged = audit.paused(rx)
        assert stored == logged


def _wipe(tx: Tx) -> None:
    for table in reversed(schema.metadata.sorted_tables):
        tx.connection.execute(table.delete())
    tx.connection.execute(schema.queue.insert().values(id=1, seq=0, waits=0))


def _storm(tx: Tx, ticket: str, fact: PutBack) -> None:
    tickets.apply(tx, ticket, fact)
    queue.wait_for_weather(tx, note="529", reset_at_us=None, by=ticket, chance=0)


def _log_claimed(tx: Tx, claim: Claim) -> None:
    claims.require(tx, claim[0], claim[1])
    tx.log(claim[0], Name.TOOL_STARTED)


def _want(tx: Tx, claim: Claim, wish: Wish) -> tuple[EffectRow, Verdict]:
    claims.require(tx, claim[0], claim[1])
    return effects.want(tx, wish, limit=EFFECTS)


def _ask(tx: Tx, claim: Claim, text: str) -> None:
    claims.require(tx, claim[0], claim[1])
    questions.ask(tx, claim[0], claim[1], text, run=_begin_run(tx, claim, ended=True))


def _begin_run(tx: Tx, claim: Claim, *, ended: bool = False) -> str:
    ticket, token, _ = claim
    last = sessions.last_session(tx, ticket)
    session = last.id if last is not None else f"{ticket}-1"
    if last is None:
        sessions.open_session(tx, ticket, token, session=session, generation=1, prompt_sha="sha")
    run = runs.begin_run(
        tx,
        ticket=ticket,
        token=token,
        session=session,
        kind=Kind.FIRST if last is None else Kind.RESUMED,
        carried_microusd=0,
        transcript_bytes=0,
        allowance_microusd=1_000,
    ).id
    if ended:
        runs.end_run(tx, run, outcome=Outcome.ASKED, cost=Cost(0, CostKind.MEASURED))
    return run
