"""What docs/ says of the code's tables is what they are."""

import pytest

from runner.outcome import RULES, Next, Outcome
from tests.documents import table

DOCUMENT = "outcomes.md"
FOLLOWS = {
    Next.CHECK: "the checks run, and the work is delivered",
    Next.FRESH: "a new session in the same claim, once",
    Next.HOLD: "held: {reason}",
    Next.WAIT: "back to the queue after a wait that doubles, 30 s to 30 min; no attempt",
    Next.WEATHER: "back to the queue, no attempt; the whole queue waits until a ticket gets through",
    Next.AGAIN: "back to the queue after a wait that doubles, 10 s to 5 min; one attempt, the last holds it (attempts)",
    Next.PAUSE: "back to the queue, no attempt; the whole queue is paused until `ticket-runner resume`",
    Next.LEAVE: "decided elsewhere: by whoever asked it to stop, or by the next claim",
}


@pytest.mark.parametrize("outcome", Outcome)
def test_the_documented_outcome_is_the_rule(outcome: Outcome) -> None:
    """The row of an outcome says what it means, and what its rule lets follow."""
    rule = RULES[outcome]
    row = table(DOCUMENT)[f"`{outcome}`"]
    closed = "; the session is closed" if rule.closes_session else ""
    assert row["what follows"] == FOLLOWS[rule.next].format(reason=rule.hold) + closed
    assert row["what it means"]


def test_the_document_has_every_outcome_once() -> None:
    """The table has the outcomes in the order of the rules, and nothing else."""
    assert list(table(DOCUMENT)) == [f"`{outcome}`" for outcome in RULES]
