"""What an operator may do: the table of docs/commands.md is the code's, and a command does what it says."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.budget import Cost, CostKind
from runner.commands import Command, NotPossible, Verb, move, perform
from runner.events import Name
from runner.outcome import Outcome
from runner.store import UnknownTicket, effects, log, queue, runs, sqlite_url, tickets
from runner.store.effects import Wish
from tests.documents import table
from tests.stores import Place
from tickets.moves import advance
from tickets.ticket import Cancelled, Fact, Held, Parked, Reason, Released, Retried, State, Stop, StopRequested, Ticket

DOCUMENT = "commands.md"
COLUMNS = {
    "cancel": Command(Verb.CANCEL, "ID"),
    "hold": Command(Verb.HOLD, "ID"),
    "release": Command(Verb.RELEASE, "ID"),
    "retry": Command(Verb.RETRY, "ID"),
    "retry --fresh": Command(Verb.RETRY, "ID", fresh=True),
}
ROWS = {
    "ready": Ticket("ID"),
    "ready, was asked to stop": Ticket("ID", stop=Stop.CANCEL),
    "running": Ticket("ID", State.RUNNING, token=1),
    "running, was asked to stop": Ticket("ID", State.RUNNING, token=1, stop=Stop.CANCEL),
    **{f"held: {reason}": Ticket("ID", State.HELD, reason, token=1) for reason in Reason},
    "done": Ticket("ID", State.DONE, token=1),
    "cancelled": Ticket("ID", State.CANCELLED, token=1),
}
WORDS: dict[Fact, str] = {
    Cancelled(): "cancelled",
    Parked(): "held: operator",
    Released(): "ready, goes on",
    Retried(): "ready, works again",
    Retried(fresh=True): "ready, works again in a new session",
    StopRequested(Stop.CANCEL): "stops, then cancelled",
    StopRequested(Stop.HOLD): "stops, then held: operator",
    StopRequested(Stop.RETRY): "stops, then ready, works again",
    StopRequested(Stop.RETRY, fresh=True): "stops, then ready, works again in a new session",
}
CELLS = [pytest.param(row, column, id=f"{row}-{column}") for row in ROWS for column in COLUMNS]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Return an open database."""
    place = Place(sqlite_url(tmp_path / "db"))
    yield place
    place.store.close()


@pytest.mark.parametrize(("row", "column"), CELLS)
def test_the_documented_cell_is_what_the_code_does(row: str, column: str) -> None:
    """The cell of the table says what the code makes of the command in that state, or why it is not possible."""
    assert table(DOCUMENT)[row][column] == cell(COLUMNS[column], ROWS[row])


def test_the_document_has_every_row_and_column() -> None:
    """The table has each state and reason, each command, and nothing else."""
    documented = table(DOCUMENT)
    assert list(documented) == list(ROWS)
    assert all(list(cells) == list(COLUMNS) for cells in documented.values())


def cell(command: Command, ticket: Ticket) -> str:
    """Return what the table has to say."""
    try:
        return WORDS[move(command, ticket)]
    except NotPossible as error:
        return f"no: {error.because}"


@pytest.mark.parametrize("stop", [None, *Stop])
@pytest.mark.parametrize(("row", "column"), CELLS)
def test_a_move_is_legal_and_leads_where_the_table_says(row: str, column: str, stop: Stop | None) -> None:
    """What the table allows the ticket allows too, whatever it was asked before, and it becomes what the table says."""
    command, ticket = COLUMNS[column], ROWS[row]
    if ticket.state in {State.READY, State.RUNNING}:
        ticket = replace(ticket, stop=stop)
    try:
        fact = move(command, ticket)
    except NotPossible:
        return
    after = advance(ticket, fact)
    if ticket.state is State.RUNNING:
        assert (after.state, after.token, after.stop) == (State.RUNNING, 1, Stop(command.verb))
    else:
        assert after.state is {Verb.CANCEL: State.CANCELLED, Verb.HOLD: State.HELD}.get(command.verb, State.READY)
        assert after.stop is None
        assert (after.reason is Reason.OPERATOR) == (command.verb is Verb.HOLD)
    assert after.fresh == command.fresh


@pytest.mark.parametrize(
    ("verb", "states"),
    [
        (Verb.CANCEL, {State.READY, State.RUNNING, State.HELD}),
        (Verb.HOLD, {State.READY, State.RUNNING}),
        (Verb.RELEASE, {State.READY, State.HELD}),
        (Verb.RETRY, {State.READY, State.RUNNING, State.HELD, State.CANCELLED}),
    ],
)
def test_which_state_takes_which_command(verb: Verb, states: set[State]) -> None:
    """A ticket that is held for a plain reason, or in another state, takes these commands and no others."""
    every = {state: Ticket("a", state, Reason.BUDGET if state is State.HELD else None) for state in State}
    allowed = {state for state, ticket in every.items() if not cell(Command(verb, "a"), ticket).startswith("no: ")}
    assert allowed == states


def test_commands_move_the_ticket_and_are_logged(place: Place) -> None:
    """A command changes the ticket and its log in one transaction and answers with the state."""
    place.take("a")
    said = [do(place, verb, "a") for verb in (Verb.HOLD, Verb.RELEASE, Verb.CANCEL, Verb.RETRY)]
    assert said == ["a is held", "a is ready", "a is cancelled", "a is ready"]
    assert [event.name for event in place.log("a")] == [
        Name.TICKET_TAKEN,
        Name.TICKET_PARKED,
        Name.TICKET_RELEASED,
        Name.TICKET_CANCELLED,
        Name.TICKET_RETRIED,
    ]


def test_what_is_not_possible_changes_nothing(place: Place) -> None:
    """A refused command, or one for an unknown ticket, leaves ticket and log as they are."""
    place.take("a")
    do(place, Verb.CANCEL, "a")
    before = place.store.read(log.events)
    with pytest.raises(NotPossible, match="cannot hold ticket a: it is cancelled already"):
        do(place, Verb.HOLD, "a")
    with pytest.raises(UnknownTicket):
        do(place, Verb.HOLD, "b")
    assert place.store.read(log.events) == before


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.HOLD, Verb.RETRY])
def test_a_running_ticket_is_asked_and_not_changed(place: Place, verb: Verb) -> None:
    """A running ticket keeps its claim: it is asked to stop, and the caller is told to wake the claim."""
    place.take("a")
    row = place.claim()
    assert row is not None
    reply = place.store.transact(perform, Command(verb, "a"))
    assert reply.stop
    assert reply.text == f"a is running: asked to stop ({verb})"
    after = place.store.read(tickets.get, "a")
    assert after.ticket == replace(row.ticket, stop=Stop(verb))
    assert after.owner == row.owner


def test_the_last_wish_counts(place: Place) -> None:
    """A running ticket that is asked to stop twice does what it was asked last."""
    place.take("a")
    place.claim()
    do(place, Verb.CANCEL, "a")
    do(place, Verb.HOLD, "a")
    assert place.store.read(tickets.get, "a").ticket.stop is Stop.HOLD


def test_a_question_is_not_released(place: Place) -> None:
    """What has a command of its own is named, and the ticket stays held."""
    place.take("a")
    place.claim()
    place.store.transact(tickets.apply, "a", Held(1, Reason.QUESTION))
    for verb in (Verb.RELEASE, Verb.RETRY):
        with pytest.raises(NotPossible, match=r"it is held \(question\): `ticket-runner answer a TEXT`"):
            do(place, verb, "a")
    assert do(place, Verb.CANCEL, "a") == "a is cancelled"


def test_a_released_ticket_may_get_another_budget(place: Place) -> None:
    """Letting a ticket go on with a new cap saves the cap and says so in the log; without one it keeps its own."""
    place.take("a")
    place.claim()
    place.store.transact(tickets.apply, "a", Held(1, Reason.BUDGET))
    place.store.transact(perform, Command(Verb.RELEASE, "a", budget_microusd=2_500_000))
    assert place.store.read(tickets.get, "a").spec.budget_microusd == 2_500_000
    assert [event.payload["budget_microusd"] for event in place.log("a") if event.name is Name.BUDGET_SET] == [
        2_500_000
    ]
    place.store.transact(perform, Command(Verb.RELEASE, "a"))
    assert place.store.read(tickets.get, "a").spec.budget_microusd == 2_500_000


def test_a_budget_that_is_spent_already_is_refused(place: Place) -> None:
    """A cap at or below what a ticket has spent would hold it again at once: it is refused and nothing changes."""
    place.take("a")
    place.claim()
    cost = Cost(28_000, CostKind.MEASURED)
    place.store.transact(runs.end_run, place.run("a"), outcome=Outcome.BUDGET, cost=cost)
    place.store.transact(tickets.apply, "a", Held(1, Reason.BUDGET))
    with pytest.raises(NotPossible, match=r"it has spent \$0.03 already"):
        place.store.transact(perform, Command(Verb.RELEASE, "a", budget_microusd=28_000))
    assert place.store.read(tickets.get, "a").ticket.state is State.HELD


def test_cancel_says_which_effects_it_does_not_stop(place: Place) -> None:
    """Who cancels a ticket is told of an effect that is under way or will still be done, and how to stop the latter."""
    place.take("a")
    place.claim()
    wishes = [Wish(f"folder/a/1/{name}", "a", 1, name, "deploy", {"to": name}) for name in ("now", "next")]
    for wish in wishes:
        place.store.transact(effects.want, wish, limit=None)
    place.store.transact(effects.claim, wishes[0].key, epoch=place.epoch)
    assert do(place, Verb.HOLD, "a") == "a is running: asked to stop (hold)"
    assert do(place, Verb.CANCEL, "a").splitlines() == [
        "a is running: asked to stop (cancel)",
        "effect folder/a/1/now is under way and goes on",
        "effect folder/a/1/next is still done, unless you `settle folder/a/1/next --abandon`",
    ]


def test_pause_and_resume_are_harmless_twice(place: Place) -> None:
    """A paused queue claims nothing until it is resumed; saying it twice is logged once."""
    place.take("a")
    do(place, Verb.PAUSE)
    do(place, Verb.PAUSE)
    assert place.claim() is None
    pause = place.store.read(queue.paused)
    assert pause is not None
    assert pause.by == "operator"
    do(place, Verb.RESUME)
    do(place, Verb.RESUME)
    assert place.claim() is not None
    names = [event.name for event in place.log("")]
    assert (names.count(Name.QUEUE_PAUSED), names.count(Name.QUEUE_RESUMED)) == (1, 1)


def do(place: Place, verb: Verb, ticket: str = "") -> str:
    """Carry out a command and return what is said."""
    return place.store.transact(perform, Command(verb, ticket)).text
