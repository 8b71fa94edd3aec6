"""Whether a ticket's runs still get it anywhere.

What a run left behind is saved with it, and compared with what those before it left;
a run of which nobody saved that (its daemon died) is like no other.

Knows the store and git. Does not know what follows.
"""

from anyio.to_thread import run_sync

from runner.lines import FailedLine
from runner.loops import RUNS_TO_HOLD, fingerprint, repeats
from runner.parts import Parts
from runner.store import effects, log, runs
from runner.worktree import GitFailed, WorktreeLocked, WorktreeRefused

_SAID_CHARS = 300


async def circling(parts: Parts, ticket: str, *, said: str, failed: FailedLine | None = None) -> str | None:
    """Save what the ticket's latest run left behind; return what shows that its runs go round in circles, or None.

    A check that prints nothing, as `test -e FILE` does, fails in the same way whatever the work is, and shows nothing.

    Args:
        parts: Of the daemon.
        ticket: Which.
        said: The agent's last words, redacted.
        failed: The check that fails now; None when none was run.
    """
    if failed is not None and failed.output.strip():
        times = repeats(await parts.store.write(log.failures, ticket))
        if times >= RUNS_TO_HOLD:
            return f"`{failed.command}` failed {times} times in a row in the same way: {failed.ending}\n{failed.output}"
    left = await _left(parts, ticket, said)
    times = repeats(await parts.store.write(runs.leave, ticket, left))
    if times < RUNS_TO_HOLD:
        return None
    words = " ".join(said.split())[:_SAID_CHARS]
    return (
        f"its last {times} runs left everything as it was: the same commit, files and effects"
        f" and the same last words{f': {words}' if words else ''}"
    )


async def _left(parts: Parts, ticket: str, said: str) -> str | None:
    known = await parts.store.write(effects.effects, ticket=ticket)
    asked = [(row.key, str(row.state), row.outcome) for row in known if row.kind not in effects.OURS]
    try:
        content = await run_sync(parts.repository.content, ticket)
    except (GitFailed, WorktreeLocked, WorktreeRefused):  # whoever goes on will meet it, and say so
        return None
    return fingerprint(content, effects=asked, said=said)
