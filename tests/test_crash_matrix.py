"""A ticket whose daemon is killed at any moment is, once it is done, as if nothing had happened.

`make proof` plays docs/crash-matrix.md and kills at random; KILLS and SEED say how often and which, RESULTS names a
file that keeps what came of it, for `python -m tests.matrix --write`.
"""

import os
import re
from pathlib import Path

import pytest

from runner.events import Name
from tests.matrix import results, table
from tests.matrix.moments import Blow, Cell, Inside, Moment, Way
from tests.matrix.mutations import MUTATIONS, Mutation, noticed
from tests.matrix.play import play
from tests.matrix.stories import UNREACHED
from tests.matrix.verdict import judge

pytestmark = pytest.mark.timeout(300)  # a ticket has three runs, each with the real CLI, and others play beside it

README = Path(__file__).parent.parent / "README.md"
KILLS = int(os.environ.get("KILLS", "150"))
SEED = int(os.environ.get("SEED", "1"))
RESULTS = os.environ.get("RESULTS")
DOCUMENTED = table.documented()
MOMENTS = {name: [*moments] for name, moments in DOCUMENTED.items()}
OUTCOMES = {
    section.cell(moment, way): outcome
    for section in table.SECTIONS
    for moment, outcomes in DOCUMENTED[section.name].items()
    for way, outcome in outcomes.items()
    if outcome != table.NOT_PLAYED
}
SAMPLE = Cell(
    (
        Blow(Way.DAEMON, Moment(Inside.COMMENT_WRITTEN, 1)),
        Blow(Way.TREE, Moment(Name.TOOL_STARTED, 3)),
        Blow(Way.TERM, Moment(Name.CHECK_STARTED, 1)),
    )
)
"""A kill in each way, one after the other: inside an effect, inside a tool and inside a check.

The second is not in the tool for which Claude Code asks when the first daemon is gone: the story makes sure of it once.
"""
LOST = Cell((Blow(Way.TREE, Moment(Name.TOOL_STARTED, 1)),), loses=True)


def _kind(outcome: str) -> str:
    """Return an outcome without whether Claude Code had begun to write its transcript."""
    return outcome.removeprefix("first ").removeprefix("resumed ")


def test_a_ticket_that_is_killed_in_each_way_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """Killed inside an effect, a tool and a check, a ticket ends as if undisturbed, each effect and dollar once."""
    verdict = judge(play(SAMPLE, tmp_path))
    assert (verdict.problems, verdict.struck) == ((), 3)


def test_every_event_is_a_moment_of_the_matrix() -> None:
    """Each event that the log can hold has a row in the document, or a reason why no ticket there reaches it."""
    reached = {moment.name for moments in DOCUMENTED.values() for moment in moments}
    assert {name for name in Name if name not in reached} == UNREACHED.keys()


def test_the_readme_has_the_documents_figures() -> None:
    """What the README says of kills is the document's own table."""
    (summary,) = re.findall(r"^\| killed \|(?:.*\n)+?(?=\n)", table.DOCUMENT.read_text(), re.MULTILINE)
    assert summary in README.read_text()


@pytest.mark.proof
def test_the_rows_are_what_undisturbed_tickets_go_through(tmp_path: Path) -> None:
    """The document has a row for each event and each step that undisturbed tickets go through, and no other."""
    played = {}
    for section in table.SECTIONS:
        root = tmp_path / section.name
        root.mkdir()
        played[section.name] = play(section.undisturbed, root)
        assert not judge(played[section.name]).problems
    rows = table.rows(played)
    assert {name: set(moments) for name, moments in rows.items()} == {name: set(MOMENTS[name]) for name in rows}


@pytest.mark.proof
@pytest.mark.parametrize("cell", [LOST, *table.chosen(KILLS, SEED, MOMENTS)], ids=str)
def test_a_killed_ticket_ends_as_an_undisturbed_one(tmp_path: Path, cell: Cell) -> None:
    """Whenever its daemon is killed, a ticket ends as if undisturbed; the next daemon goes on as documented."""
    verdict = judge(play(cell, tmp_path))
    if RESULTS:
        results.keep(verdict, Path(RESULTS))
    assert not verdict.problems
    if cell in OUTCOMES and cell.blows[-1].way is not Way.TERM:  # which lives on for a moment, and may come further
        assert _kind(OUTCOMES[cell]) == _kind(verdict.goes_on)


@pytest.mark.proof
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_broken_promise_is_noticed(mutation: Mutation) -> None:
    """Each line that a promise stands on, broken in a copy of the project, makes a kill of it red."""
    is_noticed, said = noticed(mutation)
    assert is_noticed, said
