"""What a run cost: by its result, else by what Claude Code wrote while it ran.

Knows transcripts and runs. Does not know what may be spent.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anyio.to_thread import run_sync

from runner import transcript
from runner.budget import Cost, run_cost
from runner.outcome import Ending, Outcome
from runner.parts import Parts
from runner.session import Transcript
from runner.store import log, runs
from runner.store.runs import RunRow


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run came to."""

    cost: Cost
    turns: int
    """Responses of the model, those of subagents too."""


async def account(parts: Parts, ticket: str | None = None) -> None:
    """End the runs of one ticket, or of all, that a dead daemon left open, with what their transcripts tell."""
    for run in await parts.store.write(runs.unended, ticket, home=parts.home.name):
        asking = await parts.store.write(log.may_be_asking, run.id)
        tree = parts.repository.path_of(run.ticket)
        bill = await run_sync(partial(bill_of, parts.home.claude, tree, run, None, asking=asking))
        await parts.store.write(runs.end_run, run.id, outcome=Outcome.ORPHANED, cost=bill.cost, turns=bill.turns)


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
    return Bill(cost, len(after.usages))
