"""Whole lives of tickets, as this version's store writes them; later versions must fold them into the same tickets.

`python -m tests.record_logs` writes them to `tests/logs/v<VERSION>/`: for each life a
file with an event a line, and `tickets.json` with what they fold into. It is run once
for a version of the payloads. What an earlier version wrote is never written again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.events import VERSION, Name
from runner.store import Tx, sqlite_url, tickets
from tests.stores import Place
from tickets.ticket import (
    Answered,
    Cancelled,
    Cause,
    Claimed,
    Fact,
    Finished,
    FreshUsed,
    Held,
    Orphaned,
    Parked,
    PutBack,
    Reason,
    Released,
    Retried,
    Settled,
    Stop,
    Stopped,
    StopRequested,
)

LOGS = Path(__file__).parent / "logs"
WORK = (Name.PROCESSES_REAPED, Name.WORKTREE_MADE, Name.RUN_STARTED, Name.TOOL_STARTED, Name.TOOL_ENDED, Name.RUN_ENDED)
_LET_GO: Mapping[Reason, Fact] = {
    Reason.QUESTION: Answered(),
    Reason.EFFECT: Settled(),
    Reason.APPROVAL: Settled(),
}

Life = Sequence[Fact | Name]
LIVES: Mapping[str, Life] = {
    "finished": [Claimed(1), *WORK, Name.AGENT_FINISHED, Name.CHECK_PASSED, Name.BRANCH_PUSHED, Finished(1)],
    "killed_and_finished": [Claimed(1), *WORK, Orphaned(1, progressed=True), Claimed(2), *WORK, Finished(2)],
    "idle_crashes": [step for n in (1, 2, 3) for step in (Claimed(n), Orphaned(n, progressed=False))],
    "crash_counts_start_again": [
        *(Claimed(1), Orphaned(1, progressed=False), Claimed(2), Orphaned(2, progressed=False)),
        *(Claimed(3), Name.TOOL_STARTED, Orphaned(3, progressed=True), Claimed(4), Orphaned(4, progressed=False)),
    ],
    "put_back_for_each_cause": [
        step
        for token, cause in enumerate(Cause, 1)
        for step in (Claimed(token), PutBack(token, cause, 1_000 * token, f"because of {cause}"))
    ],
    "held_for_each_reason": [
        step
        for token, reason in enumerate(Reason, 1)
        for step in (Claimed(token), Held(token, reason, f"ünïcode: {reason}"), _LET_GO.get(reason, Released()))
    ],
    "asked_and_held": [Claimed(1), *WORK, Name.QUESTION_ASKED, Held(1, Reason.QUESTION, "which?")],
    "fresh_session": [
        *(Claimed(1), *WORK, Held(1, Reason.CHECKS), Retried(fresh=True)),
        *(Claimed(2), FreshUsed(2), Name.SESSION_OPENED, PutBack(2, Cause.ATTEMPT, 5)),
    ],
    "asked_to_stop_and_killed": [Claimed(1), StopRequested(Stop.CANCEL), Orphaned(1, progressed=True)],
    "cancelled_while_running": [Claimed(1), StopRequested(Stop.HOLD), StopRequested(Stop.CANCEL), Stopped(1)],
    "held_by_the_operator": [Claimed(1), StopRequested(Stop.HOLD), Stopped(1)],
    "retried_while_running": [Claimed(1), StopRequested(Stop.RETRY, fresh=True), Stopped(1), Claimed(2)],
    "cancelled_and_taken_up": [Cancelled(), Retried(), Claimed(1), Finished(1)],
    "parked": [Parked(note="not now"), Released(), Parked(Reason.EFFECT, "outside"), Settled()],
    "released_from_a_wait": [Claimed(1), PutBack(1, Cause.WEATHER, 9_000_000, "overload"), Released()],
    "cancelled": [Claimed(1), Held(1, Reason.BUDGET, "spent $5.00"), Cancelled()],
}


def record(directory: Path) -> None:
    """Let a store live all lives, and write what it holds then."""
    with TemporaryDirectory() as made:
        place = Place(sqlite_url(Path(made) / "db"))
        folded = {}
        for life, steps in LIVES.items():
            place.take(life)
            for step in steps:
                place.store.transact(_live, life, step)
                place.clock.pass_s(1)
            lines = [json.dumps(asdict(event), ensure_ascii=False) + "\n" for event in place.log(life)]
            (directory / f"{life}.jsonl").write_text("".join(lines))
            folded[life] = asdict(place.store.read(tickets.get, life).ticket)
        place.store.close()
    (directory / "tickets.json").write_text(json.dumps(folded, indent=1, ensure_ascii=False) + "\n")


def _live(tx: Tx, ticket: str, step: Fact | Name) -> None:
    if isinstance(step, Name):
        tx.log(ticket, step, run=f"{ticket}/1", note="of no matter")
    else:
        tickets.apply(tx, ticket, step)


def main() -> None:
    """Write this version's lives."""
    directory = LOGS / f"v{VERSION}"
    directory.mkdir(parents=True)
    record(directory)


if __name__ == "__main__":
    main()
