"""Do each outside effect once per key, across crashes.

An effect is what another system can see: a comment, a deploy, a notification. The wish
is saved before anything is done, the claim before the call and the outcome after it; a
crash in between leaves a claimed effect, which is settled by asking the outside, and called
again only where that provably repeats nothing. What cannot be found out is left to a person.

Knows the store. Does not know sessions, git, sources or the supervisor: performers are
registered by kind.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import anyio
from anyio.abc import TaskGroup

from runner import log
from runner.events import Value
from runner.store import Store, StoreUnavailable, Tx, claims, effects
from runner.store.effects import EffectRow, EffectState, Verdict, Wish
from runner.store.tickets import Row

P = ParamSpec("P")
T = TypeVar("T")

STORE_RETRY_S = 5.0
"""Between two tries while the store does not answer (a full disk)."""
_US = 1_000_000
_TRIES = 3
"""Of a call to an outside that honours keys."""


@dataclass(frozen=True, slots=True)
class Done:
    """It happened; `text` says what there is to know of it."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """It provably did not happen."""

    text: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may have happened."""

    text: str
    in_flight: bool = True
    """The call itself may still arrive; False when it is over, whatever it did."""


Outcome = Done | Failed | Unknown


@dataclass(frozen=True, slots=True)
class Absent:
    """The outside provably does not have it."""


LookedUp = Done | Absent | Unknown


@dataclass(frozen=True, slots=True)
class Performer:
    """How effects of one kind are done and found again.

    `perform` and `look_up` get the row, whose key they pass on.
    """

    perform: Callable[[EffectRow], Awaitable[Outcome]]
    look_up: Callable[[EffectRow], Awaitable[LookedUp]] | None = None
    honours_keys: bool = False
    """Done twice under one key is done once, at the outside."""
    limit_s: float = 60.0
    """How long after its claim a call may still arrive outside."""
    await_end: Callable[[EffectRow], Awaitable[None]] | None = None
    """Wait until a dead daemon's call for the row is proved to be over on this host."""


def explained(what: str, why: object) -> str:
    """Return `what: why`, or what alone when there is no more to say."""
    more = str(why).strip()
    return f"{what}: {more}" if more else what


class _Left(Exception):
    """The daemon stops: the effect stays claimed and the next one goes on with it."""


def effect_key(source: str, ticket: str, round_: int, operation: str) -> str:
    """Return the idempotency key of an operation: stable over runs and sessions."""
    return "/".join(quote(part, safe="") for part in (source, ticket, str(round_), operation))


def wish_of(
    row: Row,
    operation: str,
    kind: str,
    payload: Mapping[str, Value],
    *,
    needs_approval: bool = False,
    run: str | None = None,
) -> Wish:
    """Return the wish for an operation of a ticket's round."""
    ticket = row.ticket
    key = effect_key(row.source, ticket.id, ticket.round, operation)
    return Wish(key, ticket.id, ticket.round, operation, kind, payload, needs_approval, run)


class Ledger:
    """The effects of one daemon, each performed in a task that outlives the run that wanted it."""

    def __init__(
        self,
        store: Store,
        *,
        home: str,
        epoch: int,
        performers: Mapping[str, Performer],
        limit: int,
        tasks: TaskGroup,
        on_settled: Callable[[str], None],
        retry_s: float = STORE_RETRY_S,
    ) -> None:
        self._store, self._home, self._epoch = store, home, epoch
        self._performers, self._limit, self._tasks, self._on_settled = performers, limit, tasks, on_settled
        self._retry_s = retry_s
        self._under_way: dict[str, anyio.Event] = {}
        self._leaving = anyio.Event()

    @property
    def is_busy(self) -> bool:
        """Something is under way."""
        return bool(self._under_way)

    def leave(self) -> None:
        """Wait no longer for the store, nor for what earlier daemons left to become old enough.

        Calls of ours end as they do.
        """
        self._leaving.set()

    async def request(self, wish: Wish, *, token: int) -> tuple[EffectRow, Verdict]:
        """Save a wish of a claim, do it unless it is there, and return what is known of it then.

        Cancelled, it goes on and its outcome is in the ledger.

        Raises:
            LostTicket: `token` is not the ticket's present claim.
            TooManyEffects: The ticket has as many as it may have.
        """
        row, verdict = await self._store.write(_want_claimed, wish, token, self._limit)
        if verdict is not Verdict.CONFLICT and not row.waits_for_approval:
            await self.settled(row.key)
        return await self._store.write(effects.get, row.key), verdict

    async def perform_due(self) -> None:
        """Begin everything that is wanted and may be performed."""
        for row in await self._store.write(effects.due, home=self._home):
            self._begin(row)

    async def settle_dead(self) -> None:
        """Begin to find out what became of what earlier daemons of this home claimed and did not settle.

        While the store does not answer it waits, until the daemon leaves.
        """
        with suppress(_Left):
            for row in await self._write(effects.abandoned_claims, home=self._home, epoch=self._epoch):
                self._begin(row)

    async def settled(self, key: str) -> None:
        """Wait until nothing is under way for an effect, having begun it if it was due."""
        if key not in self._under_way:
            row = await self._store.write(effects.get, key)
            if row.state is EffectState.WANTED and not row.waits_for_approval:
                self._begin(row)
        if key in self._under_way:
            await self._under_way[key].wait()

    async def settle_ticket(self, ticket: str) -> list[EffectRow]:
        """Wait until nothing that a ticket waits for is under way, and return what of that is open still."""
        await self.settle_dead()
        await self.perform_due()
        for row in await self._store.write(effects.open_effects, ticket):
            if not row.is_unknown:
                await self.settled(row.key)
        return await self._store.write(effects.open_effects, ticket)

    def _begin(self, row: EffectRow) -> None:
        if row.key not in self._under_way and not self._is_for_another(row):
            self._under_way[row.key] = anyio.Event()
            self._tasks.start_soon(self._take_care, row)

    def _is_for_another(self, row: EffectRow) -> bool:
        """Of what we say ourselves: a daemon that is configured to say it may be there, and no ticket waits for it."""
        return row.kind in effects.OURS and row.kind not in self._performers and row.state is EffectState.WANTED

    async def _take_care(self, row: EffectRow) -> None:
        """Let nothing that goes wrong with one effect end the others."""
        try:
            with suppress(_Left):
                await self._bring_to_an_end(row)
        except Exception:  # noqa: BLE001  it must not end the daemon
            log.defect("effect.failed", key=row.key)
            await self._pause()  # or what is due would be begun again at once
        finally:
            self._under_way.pop(row.key).set()
            self._on_settled(row.ticket)

    async def _bring_to_an_end(self, row: EffectRow) -> None:
        """Bring one effect to an outcome, or to a person."""
        performer = self._performers.get(row.kind)
        is_wanted = row.state is EffectState.WANTED
        claimed = await self._write(effects.claim, row.key, epoch=self._epoch) if is_wanted else row
        if claimed is None:
            return
        if performer is None:
            tried = "" if row.attempts else "it was not tried: "
            await self._save(claimed, Unknown(f"{tried}no effect {row.kind} is configured any more"))
        elif is_wanted:
            await self._perform(performer, claimed)
        else:
            await self._find_out(performer, claimed)

    async def _write(self, fn: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Write as soon as the store takes it: an outcome that is not saved would be asked of a person."""
        while True:
            is_last = self._leaving.is_set()
            try:
                return await self._store.write(fn, *args, **kwargs)
            except StoreUnavailable as error:
                log.warn("store.unavailable", error=str(error), retry_s=self._retry_s)
                if is_last:
                    raise _Left from error
            await self._pause()

    async def _pause(self) -> None:
        with anyio.move_on_after(self._retry_s):
            await self._leaving.wait()

    async def _perform(self, performer: Performer, row: EffectRow, *, perhaps_before: bool = False) -> None:
        """Do it; `perhaps_before`: an earlier call may have arrived, at a target that honours keys."""
        outcome = await self._call(performer, row)
        tries = _TRIES if performer.honours_keys else 1
        while isinstance(outcome, Unknown) and row.attempts < tries:
            again = await self._write(effects.reclaim, row, epoch=self._epoch)
            if again is None:
                return
            row, outcome, perhaps_before = again, await self._call(performer, again), True
        if isinstance(outcome, Failed) and perhaps_before:  # this call did not arrive, or was refused as a repetition
            outcome = Unknown(f"an earlier try may have arrived; the latest: {outcome.text}")
        if isinstance(outcome, Unknown) and performer.look_up is not None:
            looked = await self._look_up(performer, row, in_flight=outcome.in_flight)
            outcome = Failed(outcome.text) if isinstance(looked, Absent) else looked
        await self._save(row, outcome)

    async def _call(self, performer: Performer, row: EffectRow) -> Outcome:
        try:
            return await performer.perform(row)
        except Exception as error:  # noqa: BLE001  whatever a performer raises, the call may have arrived
            return Unknown(explained(type(error).__name__, error))

    async def _find_out(self, performer: Performer, row: EffectRow) -> None:
        """Settle what a dead daemon claimed; do it again only where that provably repeats nothing."""
        if (remains := await self._await_end(performer, row)) is not None:
            await self._save(row, remains)
            return
        if performer.honours_keys:
            looked: LookedUp = Absent()
        elif performer.look_up is None:
            looked = Unknown("its daemon died while it was performed, and there is no way to look it up")
        else:
            looked = await self._look_up(performer, row, in_flight=True)
        if not isinstance(looked, Absent):
            await self._save(row, looked)
            return
        claimed = await self._write(effects.reclaim, row, epoch=self._epoch)
        if claimed is not None:
            await self._perform(performer, claimed, perhaps_before=performer.honours_keys)

    async def _await_end(self, performer: Performer, row: EffectRow) -> Unknown | None:
        """Wait until the dead daemon's call is over; say why when it cannot be ended."""
        if performer.await_end is None:
            return None
        ended, remains = False, None
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self._cancel_on_leaving, waiting.cancel_scope)
            try:
                await performer.await_end(row)
            except Exception as error:  # noqa: BLE001  what is not proved to be over may still arrive
                remains = Unknown(f"what did it may go on: {explained(type(error).__name__, error)}")
            ended = True
            waiting.cancel_scope.cancel()
        if not ended:
            raise _Left
        return remains

    async def _cancel_on_leaving(self, scope: anyio.CancelScope) -> None:
        await self._leaving.wait()
        scope.cancel()

    async def _look_up(self, performer: Performer, row: EffectRow, *, in_flight: bool) -> LookedUp:
        """Ask the outside; believe that it is absent only when no call for it can arrive any more."""
        looked = await self._ask(performer, row)
        if not isinstance(looked, Absent) or not in_flight:
            return looked
        now_us = await self._write(lambda tx: tx.now_us)
        with anyio.move_on_after(max((row.claimed_at_us or 0) + performer.limit_s * _US - now_us, 0) / _US):
            await self._leaving.wait()
            raise _Left
        return await self._ask(performer, row)

    async def _ask(self, performer: Performer, row: EffectRow) -> LookedUp:
        if performer.look_up is None:
            return Unknown("there is no way to look it up")
        try:
            return await performer.look_up(row)
        except Exception as error:  # noqa: BLE001  a look-up that fails says nothing
            return Unknown(f"it could not be looked up: {explained(type(error).__name__, error)}")

    async def _save(self, row: EffectRow, outcome: Outcome) -> None:
        match outcome:
            case Done(text):
                await self._write(effects.settle, row, EffectState.DONE, text)
            case Failed(text):
                await self._write(effects.settle, row, EffectState.FAILED, text)
            case Unknown(text):
                await self._write(effects.leave_unknown, row, text)


def _want_claimed(tx: Tx, wish: Wish, token: int, limit: int) -> tuple[EffectRow, Verdict]:
    claims.require(tx, wish.ticket, token)
    return effects.want(tx, wish, limit=limit)
