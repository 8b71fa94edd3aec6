"""What a run that goes on has come to so far, by what Claude Code has written of it.

Read while it writes, so the last response may be missing. Knows transcripts and the
state directory; the ledger is accounts.py's.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from runner import transcript
from runner.home import Home
from runner.store.runs import RunRow


@dataclass(frozen=True, slots=True)
class Live:
    """A run that has not ended."""

    run: str
    turns: int
    """Responses of the model, those of subagents too."""
    microusd: int | None
    """At list price; None when a model has no known one."""


def live(home: Home, runs: Iterable[RunRow]) -> Live | None:
    """Return what the run that goes on has come to, None when there is none or nothing can be read of it."""
    for run in runs:
        if run.ended_at_us is None:
            file = transcript.path(home.claude, home.worktrees / run.ticket, run.session)
            try:
                usages = transcript.read(file, since_bytes=run.transcript_bytes).usages
            except OSError:
                return None
            return Live(run.id, len(usages), transcript.price(usages))
    return None
