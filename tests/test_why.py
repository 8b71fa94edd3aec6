"""Each sentence of why a ticket is not running, with the state that causes it, and what would make it run."""

from dataclasses import replace

import pytest

from runner.admission import WEATHER, Closed
from runner.events import Name, Value
from runner.why import (
    Asked,
    Facts,
    Last,
    Owner,
    Queue,
    Why,
    clock,
    closed,
    in_the_folder,
    lasted,
    next_step,
    not_taken,
    why,
)
from tickets.ticket import NEVER_US, Cause, Reason, State, Stop, Ticket

SECOND = 1_000_000
NOW = 1_000 * SECOND
HERE, THERE = "host:/home", "other:/home"
QUEUE = Queue(NOW, HERE, has_daemon=True, slots=2, running=0, attempts=3)
ALONE = replace(QUEUE, has_daemon=False)
FULL = replace(QUEUE, running=2)
LATER = NOW + 3_600 * SECOND
AT_LATER = "1970-01-01T01:16:40Z"
RUNNING = Facts(Ticket("a", State.RUNNING, token=1), owner=Owner(HERE, "host", NOW + SECOND))
READY = Facts(Ticket("a"))
START = "`ticket-runner start`"
ENDS_THE_WAIT = "`ticket-runner release a`"
DAEMON = f"a daemon: {START}"


def held(reason: Reason, note: str = "", **more: int) -> Ticket:
    """Return a held ticket."""
    return Ticket("a", State.HELD, reason, note, **more)  # type: ignore[arg-type]  # counts


def waiting(note: str = "", **more: int) -> Ticket:
    """Return a ticket that was claimed before and waits for an hour."""
    return Ticket("a", note=note, token=1, not_before_us=LATER, **more)  # type: ignore[arg-type]  # counts


def last(name: Name, age_s: int, **payload: Value) -> Facts:
    """Return a running ticket of which this was logged last."""
    return replace(RUNNING, last=Last(name, payload, NOW - age_s * SECOND))


@pytest.mark.parametrize("reason", sorted({*Reason} - {Reason.ATTEMPTS}))
def test_a_held_ticket_says_for_what_and_which_command_lets_it_go_on(reason: Reason) -> None:
    """A hold is told by its reason, its note and the command that ends it."""
    told = why(Facts(held(reason, "a note\nand more")), QUEUE)
    assert told == Why(f"{reason}: a note\nand more", next_step(held(reason)))
    assert "ticket-runner" in told.then
    assert why(Facts(held(reason)), QUEUE).sentence == str(reason)


@pytest.mark.parametrize(
    ("facts", "queue", "sentence", "then"),
    [
        (
            Facts(held(Reason.QUESTION, "Which colour?"), asked=Asked(NOW - 7_200 * SECOND)),
            QUEUE,
            "question, asked 2h ago: Which colour?",
            "`ticket-runner answer a TEXT`",
        ),
        (
            Facts(held(Reason.ATTEMPTS, "turns", attempts=2)),
            QUEUE,
            "attempts, 3 failed: turns",
            "`ticket-runner retry a`",
        ),
        (
            Facts(held(Reason.ATTEMPTS, "3 claims in a row ended", crashes=3)),
            QUEUE,
            "attempts: 3 claims in a row ended",
            "`ticket-runner retry a`",
        ),
        (
            Facts(held(Reason.APPROVAL, "k: deploy"), effects={"approval": 1, "done": 2}),
            QUEUE,
            "approval: k: deploy",
            next_step(held(Reason.APPROVAL)),
        ),
        (
            Facts(held(Reason.APPROVAL, "k: deploy"), effects={"wanted": 1, "done": 2}),
            QUEUE,
            "approval: decided; it goes on when that is done",
            "",
        ),
        (
            Facts(held(Reason.EFFECT, "k: deploy"), effects={"claimed": 1}),
            ALONE,
            "effect: decided; it goes on when that is done",
            START,
        ),
        (
            Facts(held(Reason.EFFECT, "k: deploy"), effects={"done": 3}),
            QUEUE,
            "effect: k: deploy",
            next_step(held(Reason.EFFECT)),
        ),
    ],
)
def test_a_held_ticket_says_what_is_known_of_its_hold(facts: Facts, queue: Queue, sentence: str, then: str) -> None:
    """Since when a question waits, how often it failed, and whether a person has decided already."""
    assert why(facts, queue) == Why(sentence, then)


def test_a_question_with_a_deadline_says_when_its_default_is_taken() -> None:
    """A person may answer until then; after it the default lets the ticket go on."""
    note = f"(default answer, taken at {AT_LATER}: blue) Which colour?"
    told = why(Facts(held(Reason.QUESTION, note), asked=Asked(NOW - SECOND, LATER)), QUEUE)
    assert told == Why(f"question, asked 1s ago: {note}", "`ticket-runner answer a TEXT`", LATER)


@pytest.mark.parametrize(
    ("facts", "queue", "told"),
    [
        (READY, QUEUE, Why("due: it is next")),
        (replace(READY, ahead=3), QUEUE, Why("due: 3 before it")),
        (READY, FULL, Why("no slot is free (2 of 2 taken); it is next", "one of the running tickets ends")),
        (
            replace(READY, ahead=1),
            FULL,
            Why("no slot is free (2 of 2 taken); 1 before it", "one of the running tickets ends"),
        ),
        (READY, ALONE, Why("no daemon runs; it is next", START)),
        (
            Facts(Ticket("a", not_before_us=LATER), asked_not_before_us=LATER),
            QUEUE,
            Why(f"waits until {AT_LATER}: as it asks (not_before)", ENDS_THE_WAIT, LATER),
        ),
        (
            Facts(waiting("overloaded", waits=2)),
            QUEUE,
            Why(f"waits until {AT_LATER}: wait 2 in a row: overloaded", ENDS_THE_WAIT, LATER),
        ),
        (
            Facts(waiting("turns", attempts=1), last=Last(Name.TICKET_PUT_BACK, {"cause": Cause.ATTEMPT}, NOW)),
            QUEUE,
            Why(f"waits until {AT_LATER}: try 1 of 3 failed: turns", ENDS_THE_WAIT, LATER),
        ),
        (
            Facts(waiting("the day's cap is spent"), last=Last(Name.TICKET_PUT_BACK, {"cause": Cause.ALLOWANCE}, NOW)),
            QUEUE,
            Why(f"waits until {AT_LATER}: the day's cap is spent", "", LATER),
        ),
        (
            Facts(replace(waiting("the queue's cap is spent"), not_before_us=NEVER_US)),
            QUEUE,
            Why("waits for a person: the queue's cap is spent", "a restart with a higher cap"),
        ),
        (Facts(waiting()), ALONE, Why(f"waits until {AT_LATER}", ENDS_THE_WAIT, LATER, DAEMON)),
        (Facts(Ticket("a", stop=Stop.CANCEL)), QUEUE, Why("asked to stop (cancel): its next claim does that first")),
        (
            replace(READY, home=THERE),
            ALONE,
            Why("its worktree is in other:/home: only the daemon of that home works on it"),
        ),
        (replace(READY, home=HERE), QUEUE, Why("due: it is next")),
    ],
)
def test_a_ready_ticket_says_what_it_waits_for(facts: Facts, queue: Queue, told: Why) -> None:
    """A time, a slot, those before it, a daemon, or the home that has its worktree."""
    assert why(facts, queue) == told


PAUSED = Closed("ticket", "the key was refused\nHTTP 401", None)
ROOM = "that room, or a lower floor and a restart"
WAITS = Closed(WEATHER, "rate limit", LATER)


@pytest.mark.parametrize(
    ("shut", "told"),
    [
        (PAUSED, Why("the queue is paused: the key was refused", "`ticket-runner resume`")),
        (Closed("operator", "", None), Why("the queue is paused", "`ticket-runner resume`")),
        (
            WAITS,
            Why(
                f"the queue waits for the weather until {AT_LATER}, when one ticket tries: rate limit",
                "`ticket-runner resume`",
                LATER,
            ),
        ),
        (
            Closed(WEATHER, "b tries whether it is over: rate limit", None),
            Why(
                "the queue waits for the weather: b tries whether it is over: rate limit",
                "`ticket-runner resume`",
            ),
        ),
        (Closed("hours", "outside", LATER), Why(f"no ticket starts until {AT_LATER}: outside", "", LATER)),
        (Closed("machine", "no room", None), Why("no ticket starts: no room", needs=ROOM)),
    ],
)
def test_what_closes_the_queue_is_why_a_due_ticket_waits(shut: Closed, told: Why) -> None:
    """A person's pause, a refused key, the weather and who tries whether it is over; a running ticket goes on."""
    queue = replace(QUEUE, shut=shut)
    assert why(READY, queue) == told
    assert why(RUNNING, queue) == why(RUNNING, QUEUE)


@pytest.mark.parametrize(
    ("shut", "has_daemon", "step"),
    [
        (WAITS, True, f"at {AT_LATER}, or sooner with `ticket-runner resume`"),
        (WAITS, False, f"at {AT_LATER}, or sooner with `ticket-runner resume`; that takes {DAEMON}"),
        (Closed("hours", "outside", LATER), True, f"at {AT_LATER}"),
        (Closed("hours", "outside", LATER), False, f"at {AT_LATER}; that takes {DAEMON}"),
        (Closed("machine", "no room", None), True, ROOM),
        (Closed("machine", "no room", None), False, f"{ROOM}; {DAEMON}"),
        (PAUSED, False, f"`ticket-runner resume`, and {START}"),
        (None, True, ""),
        (None, False, START),
    ],
)
def test_the_next_step_makes_the_ticket_run(shut: Closed | None, has_daemon: bool, step: str) -> None:
    """A time comes only for a daemon, a command makes it come sooner, and a lack of room takes room."""
    assert why(READY, replace(QUEUE, has_daemon=has_daemon, shut=shut)).next == step


def test_what_keeps_a_ticket_longest_is_told() -> None:
    """A person's pause outweighs a ticket's own wait, a try for better weather does not; of two times the later."""
    own, longer = Facts(waiting()), Facts(replace(waiting(), not_before_us=LATER + 1))
    assert why(own, replace(QUEUE, shut=PAUSED)) == closed(PAUSED)
    assert why(own, replace(QUEUE, shut=WAITS)) == closed(WAITS)
    assert why(longer, replace(QUEUE, shut=WAITS)) == why(longer, QUEUE)
    assert why(own, replace(QUEUE, shut=Closed(WEATHER, "b tries whether it is over", None))) == why(own, QUEUE)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (RUNNING, "works"),
        (last(Name.TICKET_CLAIMED, 3), "gets ready for 3s"),
        (last(Name.SETUP_STARTED, 61, command="npm ci"), "sets up for 1m: npm ci"),
        (last(Name.RUN_STARTED, 2), "starts Claude Code for 2s"),
        (last(Name.AGENT_STARTED, 90), "the model thinks for 1m"),
        (last(Name.TOOL_STARTED, 600, tool="Bash", summary="make test\nx"), "in Bash for 10m: make test"),
        (last(Name.TOOL_STARTED, 5, tool="Read"), "in Read for 5s"),
        (last(Name.TOOL_ENDED, 4, is_error=False), "the model thinks for 4s"),
        (last(Name.AGENT_RETRIED, 8, attempt=2, status=529), "asks the API again for 8s: 529, try 2"),
        (
            last(Name.AGENT_RETRIED, 8, attempt=1, status=None, error=None),
            "asks the API again for 8s: no answer, try 1",
        ),
        (last(Name.EFFECT_CLAIMED, 12, key="folder/a/1/deploy"), "waits for an effect for 12s: folder/a/1/deploy"),
        (last(Name.CHECK_STARTED, 7_300, command="make test"), "checks for 2h: make test"),
        (last(Name.AGENT_FINISHED, 1), "delivers for 1s"),
        (last(Name.EFFECT_DONE, 9, key="k"), "works: effect.done 9s ago"),
        (replace(RUNNING, owner=None), "works"),
    ],
)
def test_a_running_ticket_says_what_it_does(facts: Facts, sentence: str) -> None:
    """By the last that was logged: in which tool or check, or at what else, and for how long."""
    assert why(facts, QUEUE) == Why(sentence)


@pytest.mark.parametrize(
    ("facts", "queue", "told"),
    [
        (
            replace(RUNNING, ticket=replace(RUNNING.ticket, stop=Stop.HOLD)),
            QUEUE,
            Why("asked to stop (hold)", "it does when its processes are gone"),
        ),
        (
            replace(RUNNING, ticket=replace(RUNNING.ticket, stop=Stop.CANCEL)),
            ALONE,
            Why("asked to stop (cancel): it does when a daemon starts", START),
        ),
        (RUNNING, ALONE, Why("interrupted: it goes on at the next start", START)),
        (
            replace(RUNNING, owner=Owner(THERE, "other", NOW)),
            ALONE,
            Why("claimed by the daemon of other:/home on other"),
        ),
        (
            replace(RUNNING, owner=Owner(THERE, "other", NOW - SECOND), home=THERE),
            QUEUE,
            Why(
                "claimed by the daemon of other:/home on other, silent since 1970-01-01T00:16:39Z",
                "that daemon takes it up at its start",
            ),
        ),
        (
            replace(RUNNING, owner=Owner(THERE, "other", NOW - SECOND)),
            QUEUE,
            Why(
                "claimed by the daemon of other:/home on other, silent since 1970-01-01T00:16:39Z",
                "a daemon of this database puts it back",
            ),
        ),
    ],
)
def test_a_running_ticket_that_does_not_go_on_says_so(facts: Facts, queue: Queue, told: Why) -> None:
    """It was asked to stop, its daemon is dead, or it is another home's."""
    assert why(facts, queue) == told


def test_what_is_over_says_where_the_work_is() -> None:
    """A done ticket names its branch or says that nothing had to change, and one that was given up the way back."""
    assert why(Facts(Ticket("a", State.DONE), branch="ticket/a"), ALONE) == Why("its work is on ticket/a")
    assert why(Facts(Ticket("a", State.DONE)), ALONE) == Why("nothing had to change")
    assert why(Facts(Ticket("a", State.CANCELLED)), ALONE) == Why("given up", "`ticket-runner retry a`")


def test_a_file_that_is_no_ticket_says_why() -> None:
    """It is not taken in yet, for want of a daemon or of a second, or it cannot be."""
    assert in_the_folder(has_daemon=False) == Why("waits in the folder: nothing has taken it in", START)
    assert in_the_folder(has_daemon=True).then == "it is taken in when it has not changed for a second"
    assert not_taken("unknown key `x`").sentence == "not taken: unknown key `x`"


def test_every_hold_has_a_next_step() -> None:
    """Whatever holds a ticket, a person is told the command that lets it go on; other states need none."""
    for reason in Reason:
        assert "ID" in next_step(Ticket("ID", State.HELD, reason))
    assert next_step(Ticket("ID")) == ""


def test_a_cap_says_what_raises_it() -> None:
    """More dollars are given with the release, every other cap is raised where it is configured."""
    assert (
        next_step(held(Reason.BUDGET, "limits.ticket_usd: $1 of $1 spent"))
        == "`ticket-runner release a --budget-usd N`"
    )
    turns = next_step(held(Reason.BUDGET, "limits.ticket_turns: 3 of 3 turns used; and more"))
    assert turns == "raise limits.ticket_turns, restart and `ticket-runner release a`"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1, "0s"), (0, "0s"), (60, "1m"), (3_599, "59m"), (7_300, "2h"), (200_000, "2d")],
)
def test_a_length_of_time_is_shown_in_its_largest_whole_unit(seconds: int, shown: str) -> None:
    """Seconds, minutes, hours or days, rounded down."""
    assert lasted(seconds * SECOND) == shown


def test_a_time_is_shown_to_the_second() -> None:
    """In UTC, and says so."""
    assert clock(LATER) == AT_LATER
