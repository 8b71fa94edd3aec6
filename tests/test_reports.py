"""What a person is told when a claim ends, and when nothing is told."""

from collections.abc import Iterator

import pytest

from runner import reports
from runner.claim import Report
from runner.reports import Told
from runner.store import Tx, claims, effects, questions, tickets
from runner.store.effects import NOTIFY, REPORT
from tests.stores import HOME, Place, claimed
from tickets.ticket import Held, Reason, State, Stop, StopRequested, Ticket

ALL = Told(frozenset(State))


@pytest.fixture
def place(database: str) -> Iterator[Place]:
    """Return an open database with one daemon and a claimed ticket."""
    yield from claimed(database)


def bodies(place: Place) -> dict[str, str]:
    """Return what is wanted to be told, by the kind of effect."""
    wanted = place.store.read(effects.effects, ticket="a")
    return {row.kind: str(row.payload["text" if row.kind == NOTIFY else "body"]) for row in wanted}


def die(place: Place) -> Ticket:
    """Let the daemon die with its claim of the ticket and the next one find that."""
    place.epoch = place.start()

    def find(tx: Tx) -> Ticket:
        (row,) = claims.orphans(tx, home=HOME, epoch=place.epoch)
        return reports.give_up(tx, row, ALL)

    return place.store.transact(find)


def test_a_hold_after_three_deaths_is_told(place: Place) -> None:
    """A ticket with which three daemons in a row died is commented on and notified of, and one that goes on is not."""
    for _ in range(2):
        assert die(place).state is State.READY
        assert bodies(place) == {}
        place.claim()
    assert die(place).reason is Reason.ATTEMPTS
    said = bodies(place)
    assert said.keys() == {REPORT, NOTIFY}
    assert (
        said[REPORT]
        == said[NOTIFY]
        == (
            "Held (attempts).\n\n3 claims in a row ended in the daemon's death with nothing new in the log\n\n"
            "Next: `ticket-runner retry a`"
        )
    )


def test_a_ticket_that_ends_cancelled_is_not_called_held(place: Place) -> None:
    """What would have held a ticket that was to be cancelled is told to nobody."""
    place.store.transact(tickets.apply, "a", StopRequested(Stop.CANCEL))
    report = Report(Held(1, Reason.CHECKS, "`make test`: exit code 1"))
    saved = place.store.transact(reports.save, "a", lambda _: report, ALL, chance=0)
    assert (saved.state, bodies(place)) == (State.CANCELLED, {})


@pytest.mark.parametrize(
    ("reason", "state"),
    [(Reason.CHECKS, State.READY), (Reason.BUDGET, State.READY), (Reason.QUESTION, State.HELD)],
)
def test_a_retry_that_was_asked_for_outlives_a_hold(place: Place, reason: Reason, state: State) -> None:
    """A ticket that was to be retried works again and is not called held, but where a person has to decide first."""
    place.store.transact(questions.ask, "a", 1, "Up?", run=place.run("a"))
    place.store.transact(tickets.apply, "a", StopRequested(Stop.RETRY, fresh=True))
    saved = place.store.transact(reports.save, "a", lambda _: Report(Held(1, reason, "why")), ALL, chance=0)
    assert (saved.state, saved.fresh, bool(bodies(place))) == (state, True, state is State.HELD)
