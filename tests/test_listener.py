"""What of an agent's doings comes into the log, and what is left out."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from runner.agent import ToolEnded, ToolStarted, Used
from runner.events import Name
from runner.listener import Listener
from runner.outcome import StoppedBy
from runner.session import Kind, Plan, session_id
from runner.store import log, tickets
from tests.homes import Place, opened


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Give a home."""
    yield from opened(tmp_path)


async def _count(_used: Used) -> StoppedBy | None:
    return None


@pytest.mark.parametrize(("is_error", "is_asking"), [(False, True), (True, False)])
def test_a_tool_that_worked_has_ended_even_while_its_run_is_ended(
    place: Place, is_error: bool, is_asking: bool
) -> None:
    """The end of a tool that worked is heard while we end its run: the next request may be on its way, and cost."""
    place.claim("t")
    run = place.converse("t")
    row = place.store.read(tickets.get, "t")
    plan = Plan(Kind.FIRST, session_id("folder", "t", 1), 1, resume=False)
    listener = Listener(place.parts(), row, run, plan, _count)

    async def work() -> None:
        await listener.before_tool(ToolStarted("tool-1", "Bash", "make"))
        await listener.end_processes()
        await listener.after_tool(ToolEnded("tool-1", is_error))
        await listener.on_message(ToolEnded("tool-1", is_error))

    place.store.transact(lambda tx: tx.log("t", Name.AGENT_STARTED, run=run))
    anyio.run(work)
    assert place.store.read(log.may_be_asking, run) is is_asking
    assert [each.event.name for each in place.store.read(log.events, ticket="t")].count(Name.TOOL_ENDED) == is_asking, (
        "told twice, and saved once"
    )


def test_a_run_that_was_not_heard_to_start_may_have_asked(place: Place) -> None:
    """Claude Code asks as it starts: a daemon that dies then has saved nothing of the run but that it began."""
    place.claim("t")
    assert place.store.read(log.may_be_asking, place.converse("t"))
