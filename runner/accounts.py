"""What a run cost, by its result, else by what Claude Code wrote while it ran; and what that leaves of each cap.

Knows transcripts, runs and the configured caps. Does not know what follows when one is reached.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anyio.to_thread import run_sync

from runner import transcript
from runner.budget import Cap, Cost, Scarce, Use, is_near, run_cost, told
from runner.caps import shortage, uses
from runner.config import Config
from runner.days import day_start_us, next_day_us
from runner.effects import wish_of
from runner.events import Name, Value
from runner.outcome import Ending, Outcome
from runner.parts import Parts
from runner.session import Transcript
from runner.store import Tx, claims, effects, log, runs, tickets
from runner.store.effects import NOTIFY
from runner.store.runs import RunRow
from tickets.ticket import NEVER_US, Cause, Released

_RESERVED_WAIT_S = 60.0
"""How long a ticket waits for money that running tickets have reserved and may give back."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run came to."""

    cost: Cost
    turns: int
    """Responses of the model, those of subagents too."""
    tokens: tuple[int, int]
    """In, those from and to the cache too, and out."""


async def account(parts: Parts, ticket: str | None = None) -> None:
    """End the runs of one ticket, or of all, that a dead daemon left open, with what their transcripts tell."""
    for run in await parts.store.write(runs.unended, ticket, home=parts.home.name):
        asking = await parts.store.write(log.may_be_asking, run.id)
        tree = parts.repository.path_of(run.ticket)
        bill = await run_sync(partial(bill_of, parts.home.claude, tree, run, None, asking=asking))
        await parts.store.write(end_orphan, run, bill, parts.config)


def end_orphan(tx: Tx, run: RunRow, bill: Bill, config: Config) -> None:
    """End a run whose daemon died before it."""
    if runs.end_run(tx, run.id, outcome=Outcome.ORPHANED, cost=bill.cost, turns=bill.turns, tokens=bill.tokens):
        warn(tx, run, config)


def until_us(short: Scarce | None, now_us: int, config: Config) -> int:
    """Return until when a ticket waits for a cap of all tickets."""
    if short is None:
        return now_us
    if short.is_reserved:
        return now_us + round(_RESERVED_WAIT_S * 1_000_000)
    return next_day_us(now_us, config.zone) if short.use.cap is Cap.DAY_USD else NEVER_US


def let_go(tx: Tx, home: str, config: Config) -> None:
    """End each wait for a cap of all tickets that is longer than it has to be, now that caps may have been raised."""
    enough_us = until_us(shortage(tx, config), tx.now_us, config)
    for ticket in claims.waiting(tx, home, Cause.ALLOWANCE, beyond_us=enough_us):
        tickets.apply(tx, ticket, Released())


def warn(tx: Tx, run: RunRow, config: Config) -> None:
    """Log each cap that the end of a run has brought near."""
    for use in uses(tx, run.ticket, config):
        if is_near(use):
            warn_of(tx, use, run, config)


def warn_of(tx: Tx, use: Use, run: RunRow, config: Config) -> None:
    """Log that a cap is near, once; the day's once a day, and any again after it was raised."""
    whose = run.ticket if use.cap.is_of_ticket else ""
    since_us = day_start_us(tx.now_us, config.zone) if use.cap is Cap.DAY_USD else 0
    limit: dict[str, Value] = {"cap": str(use.cap), f"limit_{use.unit}": use.limit}
    if not log.is_logged(tx, whose, Name.BUDGET_WARNED, limit, since_us=since_us):
        tx.log(whose, Name.BUDGET_WARNED, limit, run=run.id, **{f"used_{use.unit}": use.used})
        if config.notify.is_configured and "warned" in config.notify.on:
            _notify(tx, use, run)


def _notify(tx: Tx, use: Use, run: RunRow) -> None:
    """Want a person to be told, once per run and cap."""
    row = tickets.get(tx, run.ticket)
    ticket = row.ticket
    payload = {"ticket": ticket.id, "state": str(ticket.state), "reason": "warned", "text": told(use)}
    effects.want(tx, wish_of(row, f"{NOTIFY}.{run.number}.{use.cap}", NOTIFY, payload), limit=None)


def bill_of(
    config_dir: Path,
    worktree: Path,
    run: RunRow,
    ending: Ending | None,
    *,
    asking: bool = False,
    until_bytes: int | None = None,
) -> Bill:
    """Return what a run came to; what it cost is unknown when only its transcript could tell and that cannot be read.

    Args:
        config_dir: With the transcripts.
        worktree: Of its ticket.
        run: The run.
        ending: None when its daemon died before it.
        asking: The model may have been asked when it was last heard of. Claude Code writes its transcript up to 0.1 s
            late, and of a request that it had just sent when it was ended nothing, so the transcript may not tell.
        until_bytes: How long the transcript was when the next run began; None when none did.
    """
    file = transcript.path(config_dir, worktree, run.session)
    spoke = run.confirmed or (ending is not None and ending.confirmed)
    try:
        after = transcript.read(file, since_bytes=run.transcript_bytes, until_bytes=until_bytes)
    except OSError:
        after, spoke = transcript.Reading(Transcript.MISSING), True  # for all that can be told
    result = None if ending is None else ending.result
    total = None if result is None else result.total_cost_microusd
    last_total = after.total_microusd if after.total_is_new else None
    known = total is not None or last_total is not None
    unpriced = known or (spoke and after.state is Transcript.MISSING)
    cost = run_cost(
        carried=run.carried_microusd,
        total=total,
        last_total=last_total,
        priced=None if unpriced else transcript.price(after.usages),
        cut=result is None and (after.cut or asking),
    )
    tokens = sum(each.tokens - each.output for each in after.usages), sum(each.output for each in after.usages)
    if not after.usages and result is not None:
        tokens = result.input_tokens, result.output_tokens
    return Bill(cost, len(after.usages), tokens)
