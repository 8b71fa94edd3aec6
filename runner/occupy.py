"""A claim from its taking to its end: the lease renewed, failures caught, the end saved.

One ticket's failure never touches another: whatever goes wrong in a claim ends that
claim, and its end is saved as soon as the store takes it.

Knows claims and the store. Does not know the queue.
"""

from collections.abc import Callable
from random import random

import anyio

from runner import claim, log, reports
from runner.agent import Stop
from runner.claim import Report
from runner.effects import STORE_RETRY_S, Ledger
from runner.errors import RunnerError
from runner.outcome import Outcome, StoppedBy, follow, put_off
from runner.parts import Parts
from runner.reports import Told
from runner.store import LostTicket, StoreUnavailable, claims
from runner.store.tickets import Row
from tickets.moves import IllegalMove
from tickets.ticket import Cause, State

_BEATS_A_LEASE = 4
"""Renewals in the time of one lease: three may fail before it ends."""


async def occupy(parts: Parts, ledger: Ledger, row: Row, stop: Stop, told: Told) -> State | None:
    """Work on a claimed ticket and return its state when that is saved; None when the claim was lost."""
    async with anyio.create_task_group() as beating:
        beating.start_soon(_beat, parts, row, stop)
        report = await _attempt(parts, ledger, row, stop)
        state = await _save(parts, row, report, told)
        beating.cancel_scope.cancel()
    return state


async def _attempt(parts: Parts, ledger: Ledger, row: Row, stop: Stop) -> Callable[[int], Report]:
    """Return what a claim reports, given the time; what nobody foresaw counts as an attempt of its ticket."""
    interrupted = False
    try:
        report = await claim.work(parts, ledger, row, stop)
    except (LostTicket, StoreUnavailable) as error:
        log.warn("claim.interrupted", ticket=row.ticket.id, error=str(error))
        interrupted, note = True, str(error)
    except RunnerError as error:
        log.warn("claim.failed", ticket=row.ticket.id, error=str(error))
        note = str(error)
    except Exception as error:  # noqa: BLE001  it must not end the daemon
        log.defect("claim.failed", ticket=row.ticket.id)
        note = f"internal error: {type(error).__name__}: {error}"
    else:
        return lambda _: report
    note, attempts = parts.redactor.text(note), parts.config.limits.attempts
    if interrupted:
        return lambda now_us: Report(put_off(row.ticket, Cause.WEATHER, now_us=now_us, note=note))
    return lambda now_us: Report(follow(Outcome.FAILED, row.ticket, now_us=now_us, attempts=attempts, note=note))


async def _save(parts: Parts, row: Row, report: Callable[[int], Report], told: Told) -> State | None:
    while True:
        try:
            return (await parts.store.write(reports.save, row.ticket.id, report, told, chance=random())).state
        except StoreUnavailable as error:
            log.warn("store.unavailable", ticket=row.ticket.id, error=str(error), retry_s=STORE_RETRY_S)
            await anyio.sleep(STORE_RETRY_S)
        except IllegalMove as error:
            log.warn("claim.lost", ticket=row.ticket.id, error=str(error))
            return None


async def _beat(parts: Parts, row: Row, stop: Stop) -> None:
    """Renew the lease while the claim runs; without it the claim ends before somebody else may begin."""
    lease_s, ticket = parts.config.clocks.lease_s, row.ticket
    renewed = anyio.current_time()
    while anyio.current_time() - renewed < lease_s * (_BEATS_A_LEASE - 1) / _BEATS_A_LEASE:
        await anyio.sleep(lease_s / _BEATS_A_LEASE)
        try:
            present = await parts.store.write(claims.renew, ticket.id, ticket.token, lease_s)
        except StoreUnavailable as error:
            log.warn("lease.not_renewed", ticket=ticket.id, error=str(error))
            continue
        if present is None:
            break
        renewed = anyio.current_time()
        if present.stop is not None:
            stop.set(StoppedBy.OPERATOR)
    stop.set(StoppedBy.LOST)
