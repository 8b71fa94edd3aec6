"""What the store's transactions save and refuse, over SQLite and over PostgreSQL."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from runner.budget import RESERVE_MICROUSD, Cost, CostKind
from runner.events import Name, fold_log
from runner.outcome import Ending, Outcome, Result
from runner.session import Kind, Session
from runner.store import (
    LostTicket,
    Store,
    StoreUnavailable,
    Tx,
    UnknownRow,
    UnknownTicket,
    claims,
    log,
    questions,
    queue,
    runs,
    schema,
    sessions,
    sqlite_url,
    tickets,
)
from runner.store.overview import Sums, overview
from tests.stores import HOME, SECOND, Place
from tickets.moves import IllegalMove
from tickets.source import Refused
from tickets.ticket import (
    Answered,
    Cancelled,
    Cause,
    Expects,
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
    Spec,
    State,
    Stop,
    Stopped,
    StopRequested,
)

MEASURED = Cost(250_000, CostKind.MEASURED)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.proof)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Return an open database with one daemon."""
    make: Callable[[], str] = (
        request.getfixturevalue("postgresql")
        if request.param == "postgresql"
        else lambda: sqlite_url(tmp_path / "tickets.db")
    )
    place = Place(make())
    yield place
    place.store.close()


def test_ticket_comes_back_as_it_was_taken_in(place: Place) -> None:
    """A ticket that was taken in is read back with every field of its spec."""
    spec = Spec(
        id="Fix-1",
        text="Ünïcode '; DROP TABLE ticket; --\n/clear",
        title="Fix",
        priority=-3,
        budget_microusd=2**40,
        base="main",
        model="m",
        tools=("Bash", "Read"),
        verify=(),
        expects=Expects.NOTHING,
        not_before_us=7,
    )
    row = place.store.transact(tickets.take_in, "folder", spec)
    assert row is not None
    assert row == place.store.read(tickets.get, "Fix-1")
    assert (row.spec, row.source, row.taken_at_us) == (spec, "folder", place.clock.now_us)
    assert (row.ticket.state, row.ticket.not_before_us) == (State.READY, 7)


def test_text_that_no_database_holds_is_mended(place: Place) -> None:
    """A NUL or half a surrogate pair in a ticket is replaced and stops nothing."""
    row = place.store.transact(tickets.take_in, "folder", Spec("a", "x\0y\ud800z"))
    assert row is not None
    assert row.spec.text == "x\ufffdy?z"


def test_same_canonical_id_is_taken_in_once(place: Place) -> None:
    """An id that would share a directory with a known one is not taken in, and leaves no event."""
    place.take("Fix.1")
    assert (found := place.store.read(tickets.known, "fix-1")) is not None
    assert found.spec.id == "Fix.1"
    assert place.store.transact(tickets.take_in, "folder", Spec("fix-1", "other")) is None
    assert [row.ticket.id for row in place.store.read(tickets.all_rows)] == ["Fix.1"]
    assert place.log("fix-1") == []


def test_unknown_ticket_is_refused_with_close_ids(place: Place) -> None:
    """What names a ticket that is not there raises, says which are close, and saves nothing."""
    place.take("fix-login", "other")
    with pytest.raises(UnknownTicket, match="did you mean fix-login"):
        place.store.transact(tickets.apply, "fix-logn", Cancelled())
    with pytest.raises(UnknownTicket):
        place.store.transact(Tx.log, "nobody", Name.TOOL_STARTED)
    assert place.log("nobody") == []


def test_claims_go_by_priority_then_age(place: Place) -> None:
    """The highest priority is claimed first, of equals the oldest, and each ticket once."""
    place.take("old", "young")
    place.take("urgent", priority=5)
    place.take("late", priority=-5)
    claimed = [row.ticket.id for row in iter(place.claim, None)]
    assert claimed == ["urgent", "old", "young", "late"]


def test_tickets_of_one_instant_go_in_the_order_of_their_intake(place: Place) -> None:
    """Tickets that are taken in while the clock stands are claimed in that order, whatever their names are."""
    for ticket in "cab":
        place.store.transact(tickets.take_in, "folder", Spec(ticket, "text"))
    claimed = [place.claim() for _ in range(3)]
    assert [row.ticket.id for row in claimed if row is not None] == ["c", "a", "b"]


def test_ticket_waits_for_its_time(place: Place) -> None:
    """A ticket is not claimed before its time, and the store says when that is."""
    due_us = place.clock.now_us + 60 * SECOND
    place.store.transact(tickets.take_in, "folder", Spec("a", "text", not_before_us=due_us))
    assert place.claim() is None
    assert place.store.read(claims.next_due_us, HOME) == due_us
    place.clock.pass_s(60)
    assert place.claim() is not None
    assert place.store.read(claims.next_due_us, HOME) is None


def test_worktree_keeps_a_ticket_in_its_home(place: Place) -> None:
    """A ticket with a worktree is claimed again by the home that has it and by no other."""
    place.take("a")
    assert place.claim() is not None
    place.store.transact(claims.set_tree, "a", 1, home=HOME, branch="ticket/a", base_sha="abc")
    place.store.transact(tickets.apply, "a", PutBack(1, Cause.DRAIN))
    other = place.start("host:/other")
    assert place.claim(other, "host:/other") is None
    assert place.store.read(claims.next_due_us, "host:/other") is None
    again = place.claim()
    assert again is not None
    assert (again.home, again.branch, again.base_sha, again.ticket.token) == (HOME, "ticket/a", "abc", 2)


def test_paused_queue_gives_out_nothing(place: Place) -> None:
    """Nothing is claimed while the queue is paused, until somebody resumes it."""
    place.take("a")
    assert place.store.transact(queue.pause, reason="ticket", note="log in", by="a")
    assert not place.store.transact(queue.pause, reason="operator", note="", by="me")
    assert place.claim() is None
    place.clock.pass_s(3600)
    assert place.store.read(claims.next_due_us, HOME) is None
    paused = place.store.read(queue.paused)
    assert paused is not None
    assert (paused.reason, paused.by, paused.until_us) == ("ticket", "a", None)
    assert place.store.transact(queue.resume, by="me")
    assert not place.store.transact(queue.resume, by="me")
    assert place.claim() is not None
    paused_and_resumed = [event.name for event in place.log("") if event.name is not Name.DAEMON_STARTED]
    assert paused_and_resumed == [Name.QUEUE_PAUSED, Name.QUEUE_RESUMED]


def test_old_token_writes_nothing(place: Place) -> None:
    """Whatever a claim writes after another has taken its place is refused and leaves no trace."""
    place.take("a")
    place.claim()
    place.run("a")
    place.store.transact(claims.orphan, "a", 1)
    place.claim()
    before = place.log("a"), place.store.read(tickets.get, "a")
    fenced: list[Callable[[Tx], object]] = [
        lambda tx: claims.require(tx, "a", 1),
        lambda tx: claims.set_tree(tx, "a", 1, home="else", branch="b", base_sha="c"),
        lambda tx: sessions.open_session(tx, "a", 1, session="s2", generation=2, prompt_sha=""),
        lambda tx: runs.begin_run(
            tx,
            ticket="a",
            token=1,
            session="a-session-1",
            kind=Kind.FIRST,
            carried_microusd=0,
            transcript_bytes=0,
            allowance_microusd=1,
        ),
    ]
    for write in fenced:
        with pytest.raises(LostTicket):
            place.store.transact(write)
    for fact in (Finished(1), Orphaned(1, progressed=True), PutBack(1, Cause.DRAIN)):
        with pytest.raises(IllegalMove):
            place.store.transact(tickets.apply, "a", fact)
    assert not place.store.transact(claims.renew, "a", 1, 10)
    assert place.store.transact(claims.renew, "a", 2, 10)
    assert not place.store.read(claims.is_claimed, "a", 1)
    assert (place.log("a"), place.store.read(tickets.get, "a")) == before


def test_renewal_extends_the_lease_from_now(place: Place) -> None:
    """A renewed claim holds for the whole lease again, and none once its ticket has stopped running."""
    place.take("a")
    place.claim()
    place.clock.pass_s(9)
    assert place.store.transact(claims.renew, "a", 1, 10)
    assert place.store.read(tickets.get, "a").lease_until_us == place.clock.now_us + 10 * SECOND
    place.store.transact(tickets.apply, "a", Finished(1))
    assert not place.store.transact(claims.renew, "a", 1, 10)
    row = place.store.read(tickets.get, "a")
    assert (row.owner, row.lease_until_us) == (None, None)


def test_dead_daemons_tickets_are_found(place: Place) -> None:
    """Of this home every other epoch's running ticket is an orphan at once, of another home's once its lease ends."""
    other = place.start("host:/other")
    place.take("mine", "theirs")
    place.claim()
    place.claim(other, "host:/other")
    now = place.start()

    def found() -> list[str]:
        return [row.ticket.id for row in place.store.read(claims.orphans, home=HOME, epoch=now)]

    assert found() == ["mine"]
    place.clock.pass_s(11)
    assert found() == ["mine", "theirs"]
    place.store.transact(claims.renew, "theirs", 1, 10)
    assert found() == ["mine"]
    assert place.store.read(claims.orphans, home=HOME, epoch=place.epoch) == []


def test_third_idle_death_holds_a_ticket(place: Place) -> None:
    """Three claims in a row that died with nothing new in the log hold the ticket; progress in between starts over."""
    place.take("a")
    states = []
    for token in range(1, 7):
        assert place.claim() is not None
        place.store.transact(Tx.log, "a", Name.WORKTREE_REUSED)
        if token == 3:
            place.store.transact(Tx.log, "a", Name.TOOL_STARTED, tool_use_id="t")
        after = place.store.transact(claims.orphan, "a", token)
        states.append((after.state, after.crashes))
    ready, held = State.READY, State.HELD
    assert states == [(ready, 1), (ready, 2), (ready, 0), (ready, 1), (ready, 2), (held, 3)]
    assert place.store.read(tickets.get, "a").ticket.reason is Reason.ATTEMPTS


def test_sequence_has_no_gap_and_is_told_in_order(place: Place) -> None:
    """A transaction that fails uses up no number and is told to nobody; the others are told after they are saved."""
    place.take("a", "b")

    def fail(tx: Tx) -> None:
        tx.log("a", Name.TOOL_STARTED)
        tx.log("b", Name.TOOL_STARTED)
        raise KeyError

    def both(tx: Tx) -> None:
        tx.log("a", Name.TOOL_STARTED, {"name": "Bash", "ticket": "x"}, run="a/1", summary=["ls"])
        tx.log("b", Name.TOOL_STARTED)

    place.store.transact(both)
    with pytest.raises(KeyError):
        place.store.transact(fail)
    place.store.transact(both)
    for ticket in ("a", "b", ""):
        saved = place.log(ticket)
        assert [event.seq for event in saved] == [*range(1, len(saved) + 1)]
    entries = place.store.read(log.events)
    assert [entry.event for entry in entries] == place.told
    assert place.log("a")[1].payload == {"name": "Bash", "ticket": "x", "summary": ["ls"]}
    assert place.log("a")[1].run == "a/1"


def test_log_is_read_in_pieces(place: Place) -> None:
    """Pieces of the log, each from where the last ended, are the whole log."""
    place.take(*"abcde")
    whole = place.store.read(log.events)
    pieces: list[log.Entry] = []
    while piece := place.store.read(log.events, since=pieces[-1].id if pieces else 0, limit=2):
        assert len(piece) <= 2
        pieces += piece
    assert pieces == whole


def test_open_tools_are_those_that_never_ended(place: Place) -> None:
    """A tool is open when the log has its start but not its end in the latest run that began any."""
    place.take("a")
    place.claim()

    def work(tx: Tx) -> None:
        tx.log("a", Name.TOOL_STARTED, run="a/1", tool_use_id="before")
        tx.log("a", Name.AGENT_FINISHED, run="a/1")
        for tool in ("open", "ended"):
            tx.log("a", Name.TOOL_STARTED, run="a/2", tool_use_id=tool)
        tx.log("a", Name.TOOL_ENDED, run="a/2", tool_use_id="ended")
        tx.log("a", Name.RUN_STARTED, run="a/3")

    place.store.transact(work)
    assert [tool.payload["tool_use_id"] for tool in place.store.read(log.open_tools, "a")] == ["open"]
    since = place.store.read(log.names_since, "a", Name.AGENT_FINISHED)
    assert since == [Name.TOOL_STARTED, Name.TOOL_STARTED, Name.TOOL_ENDED, Name.RUN_STARTED]
    assert place.store.read(log.round_names, "a")[0] is Name.TICKET_CLAIMED


def test_failed_check_is_that_of_the_latest_work(place: Place) -> None:
    """A failed check is forgotten once the agent has finished again."""
    place.take("a")
    place.store.transact(Tx.log, "a", Name.AGENT_FINISHED)
    assert place.store.read(log.failed_check, "a") is None
    place.store.transact(Tx.log, "a", Name.CHECK_FAILED, command="make test")
    assert place.store.read(log.failed_check, "a") == "make test"
    place.store.transact(Tx.log, "a", Name.AGENT_FINISHED)
    assert place.store.read(log.failed_check, "a") is None


def test_failures_are_counted_once_a_conversation(place: Place) -> None:
    """Each conversation has one failure, the last of its check, and a person who lets the ticket go begins anew."""
    place.take("a")

    def seen(*names: Name, failure: str = "x") -> list[str | None]:
        for name in names:
            place.store.transact(Tx.log, "a", name, {"failure_sha": failure} if name is Name.CHECK_FAILED else {})
        return place.store.read(log.failures, "a")

    assert seen(Name.RUN_STARTED, Name.RUN_STARTED) == []
    assert seen(Name.CHECK_FAILED) == ["x"]
    assert seen(Name.CHECK_FAILED, failure="y") == ["y"], "its claim died, and the next one checked again"
    assert seen(Name.RUN_STARTED, Name.RUN_STARTED, Name.CHECK_FAILED) == ["y", "x"]
    for name in (Name.TICKET_RELEASED, Name.TICKET_RETRIED):
        assert seen(name, Name.CHECK_FAILED) == ["x"], "released, the check is run again before the agent works"
        assert seen(Name.RUN_STARTED, Name.CHECK_FAILED) == ["x", "x"]


def test_what_runs_left_is_known_in_their_order(place: Place) -> None:
    """What runs left counts where the model spoke, one that nobody saw end left nothing, and a person begins anew."""
    place.take("a")
    place.claim()

    def left(fingerprint: str | None, *, spoke: bool = True) -> list[str | None]:
        run = place.run("a")
        if spoke:
            session = place.store.read(runs.get_run, run).session
            place.store.transact(sessions.confirm_session, session, run)
        return [] if fingerprint == "crash" else place.store.transact(runs.leave, "a", fingerprint)

    assert left("x") == ["x"]
    assert left("y", spoke=False) == ["x"]
    left("crash")
    assert left("x") == ["x", None, "x"]
    assert left(None) == ["x", None, "x", None]
    place.store.transact(tickets.apply, "a", Held(1, Reason.LOOP))
    place.store.transact(tickets.apply, "a", Released())
    place.claim()
    assert left("x") == ["x"]


def test_set_up_belongs_to_a_worktree(place: Place) -> None:
    """A new worktree is not set up though the one before it was."""
    place.take("a")
    for name, ready in ((Name.WORKTREE_MADE, False), (Name.SETUP_ENDED, True), (Name.WORKTREE_MADE, False)):
        place.store.transact(Tx.log, "a", name)
        assert place.store.read(log.is_set_up, "a") is ready


def test_refusal_is_logged_when_it_is_new_or_has_changed(place: Place) -> None:
    """What the source holds and cannot become a ticket is listed while it is there, and logged once per change."""
    bad, worse, other = Refused("a.md", "bad", "1"), Refused("a.md", "worse", "2"), Refused("b.md", "bad", "1")
    logged = []
    for refused in ([bad], [bad, other], [worse, other], []):
        place.store.transact(queue.refuse, refused)
        assert place.store.read(queue.refusals) == refused
        logged.append(sum(event.name is Name.FILE_REFUSED for event in place.log("")))
    assert logged == [1, 2, 3, 3]


def test_end_of_a_run_counts_once_and_needs_no_fence(place: Place) -> None:
    """The first end of a run is saved though its ticket has a new claim or is cancelled; a second changes nothing."""
    place.take("a")
    place.claim()
    run = place.run("a")
    place.store.transact(claims.orphan, "a", 1)
    place.store.transact(tickets.apply, "a", Cancelled())
    result = Result("success", is_error=False, terminal_reason="completed", turns=7, input_tokens=9, output_tokens=5)
    end, ending = runs.end_run, Ending(resumed=False, result=result)
    assert place.store.transact(end, run, outcome=Outcome.FINISHED, cost=MEASURED, turns=4, ending=ending)
    assert not place.store.transact(end, run, outcome=Outcome.FAILED, cost=Cost(9, CostKind.ESTIMATED, cut=True))
    saved = place.store.read(runs.get_run, run)
    assert (saved.outcome, saved.cost, saved.turns) == (Outcome.FINISHED, MEASURED, 4)
    assert (saved.subtype, saved.terminal_reason, saved.cli_version) == ("success", "completed", None)
    assert place.store.read(runs.spent, "a") == 250_000
    (ended,) = [event for event in place.log("a") if event.name is Name.RUN_ENDED]
    assert ended.run == run
    assert (ended.payload["cost_microusd"], ended.payload["cost_kind"], ended.payload["cut"]) == (
        250_000,
        "measured",
        False,
    )
    with pytest.raises(UnknownRow):
        place.store.transact(end, "a/9", outcome=Outcome.FINISHED, cost=MEASURED)


def test_money_of_ticket_and_day(place: Place) -> None:
    """A ticket has spent what its runs cost; a day has spent and reserves for the runs that began in it."""
    place.take("a", "b")
    place.claim()
    place.claim()
    yesterday = place.run("a")
    place.store.transact(runs.end_run, yesterday, outcome=Outcome.STOPPED, cost=Cost(1, CostKind.MEASURED))
    place.run("b")  # since yesterday
    place.clock.pass_s(3600)
    midnight_us = place.clock.now_us
    today = place.run("a", "a-session-1")
    assert place.store.read(runs.day_money, midnight_us) == (0, 1_000_000 + RESERVE_MICROUSD)
    assert place.store.read(runs.queue_money) == (1, 2 * (1_000_000 + RESERVE_MICROUSD))
    place.store.transact(runs.end_run, today, outcome=Outcome.FINISHED, cost=Cost(2**33, CostKind.ESTIMATED))
    assert place.store.read(runs.day_money, midnight_us) == (2**33, 0)
    assert place.store.read(runs.queue_money) == (2**33 + 1, 1_000_000 + RESERVE_MICROUSD)
    assert place.store.read(runs.spent, "a") == 2**33 + 1
    assert [run.id for run in place.store.read(runs.unended)] == ["b/1"]
    assert place.store.read(runs.unended, "a") == []
    assert [run.id for run in place.store.read(runs.unended, home=None)] == ["b/1"]
    assert place.store.read(runs.unended, home="another") == []
    assert [run.id for run in place.store.read(runs.runs_of, "a")] == ["a/1", "a/2"]


def test_process_of_a_run_is_saved(place: Place) -> None:
    """A run's process is saved with its start time, and a run that is not there is refused."""
    place.take("a")
    place.claim()
    run = place.run("a")
    place.store.transact(runs.set_pid, run, 4711, 12)
    saved = place.store.read(runs.get_run, run)
    assert (saved.pid, saved.pid_started) == (4711, 12)
    with pytest.raises(UnknownRow):
        place.store.transact(runs.set_pid, "a/2", 1, 1)


def test_rules_that_changed_mark_a_session(place: Place) -> None:
    """A session that is resumed under other rules is marked and that logged once, until they are its own again."""
    place.take("a")
    place.claim()
    place.run("a")
    seen = []
    for sha in ("sha", "new", "new", "sha", "newer"):
        place.store.transact(sessions.resume_session, "a-session-1", sha)
        (session,) = place.store.read(sessions.sessions_of, "a")
        (line,) = place.store.read(overview)
        assert line.is_outdated == session.is_outdated
        seen.append((session.is_outdated, session.prompt_sha))
    assert seen == [(False, "sha"), (True, "sha"), (True, "sha"), (False, "sha"), (True, "sha")]
    told = [event.payload["latest_sha"] for event in place.log("a") if event.name is Name.SESSION_OUTDATED]
    assert told == ["new", "newer"]


def test_session_is_opened_confirmed_and_closed_once(place: Place) -> None:
    """A session opens and is confirmed once, keeps its first closing reason, and gives way to the next generation."""
    place.take("a")
    place.claim()
    run = place.run("a")
    open_ = sessions.open_session
    place.store.transact(open_, "a", 1, session="a-session-1", generation=1, prompt_sha="new")
    for _ in range(2):
        place.store.transact(sessions.confirm_session, "a-session-1", run)
    assert place.store.read(sessions.last_session, "a") == Session("a-session-1", 1, confirmed=True, rules="new")
    assert place.store.read(runs.get_run, run).confirmed
    place.store.transact(open_, "a", 1, session="s2", generation=2, prompt_sha="new", close_previous="operator")
    place.store.transact(sessions.close_session, "a-session-1", "later")
    assert place.store.read(sessions.last_session, "a") == Session("s2", 2, confirmed=False, rules="new")
    first, second = place.store.read(sessions.sessions_of, "a")
    assert (first.closed_reason, first.prompt_sha, second.closed_reason) == ("operator", "new", None)
    about = [event.name for event in place.log("a") if event.name.startswith("session.")]
    assert about == [Name.SESSION_OPENED, Name.SESSION_CONFIRMED, Name.SESSION_CLOSED, Name.SESSION_OPENED]
    with pytest.raises(UnknownRow):
        place.store.transact(sessions.confirm_session, "nothing", run)


def test_failed_starts_are_counted_in_a_row(place: Place) -> None:
    """Runs without a turn count in a row: of a session those that nothing explains, of a ticket until it is let go."""
    place.take("a")
    place.claim()

    def end(outcome: Outcome, session: str | None = "a-session-1") -> tuple[int, int]:
        run = place.run("a", session)
        if outcome is Outcome.FAILED:
            place.store.transact(sessions.confirm_session, "a-session-1", run)
        place.store.transact(runs.end_run, run, outcome=outcome, cost=Cost(0, CostKind.MEASURED))
        last = place.store.read(sessions.last_session, "a")
        assert last is not None
        return last.empty, place.store.read(runs.failed_starts, "a")

    assert end(Outcome.UNEXPLAINED, None) == (1, 1)
    assert end(Outcome.FAILED) == (0, 0)
    assert end(Outcome.UNEXPLAINED) == (1, 1)
    assert end(Outcome.NEVER_STARTED) == (1, 2)
    assert end(Outcome.UNEXPLAINED) == (2, 3)
    for outcome in (Outcome.WEATHER, Outcome.STOPPED, Outcome.ORPHANED):
        assert end(outcome) == (2, 3)
    for outcome in (Outcome.UNAUTHORIZED, Outcome.NO_CLI):
        assert end(outcome) == (2, 0)
    assert end(Outcome.UNEXPLAINED, None) == (1, 1), "a new session has not failed yet"
    place.store.transact(tickets.apply, "a", Held(1, Reason.SESSION))
    place.store.transact(tickets.apply, "a", Retried())
    assert place.store.read(runs.failed_starts, "a") == 0
    place.clock.pass_s(-900)
    place.claim()
    assert end(Outcome.UNEXPLAINED, None) == (1, 1), "the clock was set back, and what is later is later"


def test_fix_rounds_are_counted_since_the_last_retry(place: Place) -> None:
    """A failed check that is sent back counts until a person lets the ticket work again, whatever the clock does."""
    place.take("a")

    def sent_back() -> int:
        claimed = place.claim()
        assert claimed is not None
        place.store.transact(
            runs.begin_run,
            ticket="a",
            token=claimed.ticket.token,
            session=place.store.read(runs.get_run, place.run("a")).session,
            kind=Kind.FIX,
            carried_microusd=0,
            transcript_bytes=0,
            allowance_microusd=1,
        )
        place.store.transact(tickets.apply, "a", Held(claimed.ticket.token, Reason.CHECKS))
        return place.store.read(runs.fix_rounds, "a")

    assert sent_back() == 1
    place.store.transact(tickets.apply, "a", Retried())
    assert place.store.read(runs.fix_rounds, "a") == 0, "in the same moment"
    place.clock.pass_s(-900)
    assert sent_back() == 1, "and before it"


def test_messages_are_said_once_and_bounded(place: Place) -> None:
    """A message is saved once per uuid, in order, and a long one only in part."""
    place.take("a")
    place.claim()
    run = place.run("a")
    assert place.store.transact(sessions.say, "a-session-1", run, "u1", '{"text":"x"}')
    assert not place.store.transact(sessions.say, "a-session-1", run, "u1", '{"text":"y"}')
    assert place.store.transact(sessions.say, "a-session-1", run, "u2", '"' + "é" * sessions.MESSAGE_BYTES + '"')
    query = select(schema.message.c.json).order_by(schema.message.c.id)
    said, cut = place.store.read(lambda rx: rx.connection.execute(query).scalars().all())
    assert said == '{"text":"x"}'
    assert cut.startswith('{"cut": ')


def test_overview_sums_up_each_ticket(place: Place) -> None:
    """The overview has each ticket's runs, money, latest session and latest event, and can be narrowed down."""
    place.take("a", "b")
    place.claim()
    ends = [
        (None, Cost(10, CostKind.MEASURED)),
        ("a-session-1", Cost(5, CostKind.ESTIMATED, cut=True)),
        (None, Cost(0, CostKind.UNKNOWN)),
    ]
    for session, cost in ends:
        run = place.run("a", session)
        place.store.transact(runs.end_run, run, outcome=Outcome.FAILED, cost=cost, turns=2)
    first, second = place.store.read(overview)
    assert first.sums == Sums(runs=3, resumed=1, turns=6, cost_microusd=15, estimated=True, unknown=True, cut=True)
    assert (first.session, first.generation, first.last_event) == ("a-session-2", 2, Name.RUN_ENDED)
    assert (second.sums, second.session, second.last_event) == (Sums(), None, Name.TICKET_TAKEN)
    assert [line.ticket.id for line in place.store.read(overview, states=[State.READY])] == ["b"]
    assert [line.ticket.id for line in place.store.read(overview, since_us=second.changed_at_us)] == ["a", "b"]
    assert place.store.read(overview, since_us=place.clock.now_us + 1) == []


def test_epochs_end_once_they_are_known(place: Place) -> None:
    """A daemon's stop is saved, and one of a daemon that never started is refused."""
    place.store.transact(queue.end_epoch, place.epoch)
    assert place.told[-1].name is Name.DAEMON_STOPPED
    with pytest.raises(UnknownRow):
        place.store.transact(queue.end_epoch, 99)


FACTS = st.sampled_from(
    [
        Finished,
        FreshUsed,
        Stopped,
        lambda token: Orphaned(token, progressed=False),
        lambda token: Orphaned(token, progressed=True),
        *[lambda token, c=cause: PutBack(token, c, 5, "note") for cause in Cause],
        *[lambda token, r=reason: Held(token, r, "note") for reason in Reason],
        *[lambda _, s=stop: StopRequested(s, fresh=True) for stop in Stop],
        lambda _: Cancelled(),
        lambda _: Parked(note="p"),
        lambda _: Released(),
        lambda _: Retried(fresh=True),
        lambda _: Answered(),
        lambda _: Settled(),
        None,
    ]
)
"""What makes the next fact from the present token; None claims."""


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_ticket_is_what_its_log_folds_into(place: Place, data: st.DataObject) -> None:
    """After any facts, legal or refused, a ticket's row is what its log folds into."""
    number = len(place.store.read(tickets.states))
    ticket = f"t{number}"
    place.take(ticket, priority=number)
    for make in data.draw(st.lists(FACTS, min_size=5, max_size=30)):
        present = place.store.read(tickets.get, ticket).ticket
        if make is None:
            if present.state is State.READY:
                place.clock.pass_s(1)
                place.store.transact(claims.take_next, epoch=place.epoch, home=HOME, lease_s=1)
            continue
        fact: Fact = make(present.token)
        try:
            after = place.store.transact(tickets.apply, ticket, fact)
        except IllegalMove:
            after = present
        assert place.store.read(tickets.get, ticket).ticket == after
    folded = fold_log(ticket, place.log(ticket))
    assert folded == place.store.read(tickets.get, ticket).ticket
    assert replace(folded, id="x") != folded


def test_a_taste_of_postgresql(postgresql: Callable[[], str]) -> None:
    """On PostgreSQL two stores of one database give out each ticket once and fence the one that lost it."""
    place = Place(postgresql())
    place.take("a", "b")
    other = Place(place.url, clock=place.clock)
    taken = [place.claim(), other.claim(), other.claim()]
    assert [row and row.ticket.id for row in taken] == ["a", "b", None]
    place.clock.pass_s(11)
    assert [row.ticket.id for row in other.store.read(claims.orphans, home="else", epoch=other.epoch)] == ["a"]
    other.store.transact(claims.orphan, "a", 1)
    with pytest.raises(LostTicket):
        place.store.transact(claims.set_tree, "a", 1, home="x", branch="b", base_sha="c")
    reader = Store.open(place.url, read_only=True)
    assert [entry.id for entry in reader.read(log.events)] == [*range(1, 8)]
    for store in (place.store, other.store, reader):
        store.close()


def test_a_postgresql_that_only_reads_is_waited_for(postgresql: Callable[[], str]) -> None:
    """A server that takes no writes, as after a failover, is unavailable, and another connection finds it well."""
    place = Place(url := postgresql())
    place.store.close()
    with closing(psycopg.connect(url.replace("+psycopg", ""), autocommit=True)) as admin:
        name = admin.info.dbname
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        with pytest.raises(StoreUnavailable, match="read-only transaction"):
            place.take("a")
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
    place.take("a")
    place.store.close()


def test_who_is_next_and_who_runs_is_told(place: Place) -> None:
    """The line has what is due here, as it will be claimed; who runs what is known, and what waits for an answer."""
    place.take("a", "b", "c")
    place.take("urgent", priority=1)
    assert place.store.read(claims.line, HOME) == ["urgent", "a", "b", "c"]
    place.claim()
    elsewhere = place.start("host:/other")
    place.claim(elsewhere, "host:/other")
    assert place.store.read(claims.line, HOME) == ["b", "c"]
    assert [place.store.read(claims.running, home) for home in (HOME, "host:/other", "host:/third")] == [1, 1, 0]
    lines = {line.ticket.id: line for line in place.store.read(overview)}
    assert [(lines[it].owner_home, lines[it].owner_host) for it in ("urgent", "a", "b")] == [
        (HOME, "host"),
        ("host:/other", "host"),
        (None, None),
    ]
    assert lines["urgent"].last_event is Name.TICKET_CLAIMED
    assert lines["urgent"].last_payload == {"token": 1}
    run = place.run("urgent")
    for text in ("Why?", "How?"):
        place.store.transact(questions.ask, "urgent", 1, text, run=run)
    assert [it.text for it in place.store.read(questions.open_by_ticket)["urgent"]] == ["Why?", "How?"]
    place.store.transact(questions.answer, "urgent", "So.", by="me")
    assert place.store.read(questions.open_by_ticket) == {}
