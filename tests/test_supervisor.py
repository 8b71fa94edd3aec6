"""The loop where something around it fails: the queue's folder, a transcript, the source, the log of the process."""

import json
import os
import select
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event as Waiting

import anyio
import pytest
from anyio.lowlevel import checkpoint

from runner import log
from runner.budget import CostKind
from runner.errors import Exit
from runner.events import Name
from runner.mirror import Mirror
from runner.redact import Redactor
from runner.reports import Told
from runner.store import Rx, Store, StoreUnavailable, claims, questions, queue, runs, tickets
from runner.store import log as events
from runner.supervisor import Supervisor
from tests.homes import Place, git
from tests.shell import read_back, text_stream
from tickets.folder import Folder
from tickets.source import Refused
from tickets.ticket import Cancelled, Cause, Held, PutBack, Reason, Spec, State


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """Give a home that looks at its queue often."""
    place = Place(tmp_path, {"poll_s": 0.05})
    with closing(place.store):
        yield place


class Slow(Folder):
    """A folder whose file of the ticket `slow` is moved when the test says so."""

    def __init__(self, root: Path) -> None:
        ticks = count(step=2)  # every file is whole at the second look
        super().__init__(root, lambda: next(ticks))
        self.begun, self.goes_on = Waiting(), Waiting()

    def mirror(self, ticket_id: str, state: State) -> None:
        """Move a file."""
        if ticket_id == "slow":
            self.begun.set()
            self.goes_on.wait(30)
        super().mirror(ticket_id, state)


def supervisor(here: Place, *, once: bool = True) -> Supervisor:
    """Return a daemon's loop over the home."""
    return Supervisor(here.parts(), Slow(here.home.queue), Told(frozenset()), once=once)


@contextmanager
def logged() -> Iterator[Callable[[], list[dict[str, object]]]]:
    """Give what reads the lines of the process's log."""
    stream = text_stream()
    log.configure(Redactor.of([]), stream)
    try:
        yield lambda: [json.loads(line) for line in read_back(stream).splitlines()]
    finally:
        log.configure(Redactor.of([]), sys.__stderr__)


def names(lines: list[dict[str, object]]) -> list[object]:
    """Return the names of log lines."""
    return [line["event"] for line in lines]


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    with anyio.fail_after(30):
        while not condition():
            with anyio.move_on_after(0.01):
                await anyio.Event().wait()


def pause(here: Place) -> None:
    """Pause the queue, so that no ticket is claimed."""
    here.store.transact(queue.pause, reason="credential", note="the key was refused\nmore", by="claude")


def known(here: Place) -> dict[str, State]:
    """Return the states of all tickets."""
    return here.store.read(tickets.states)


@pytest.mark.anyio
async def test_a_queue_that_is_gone_is_said_once_and_read_when_it_is_back(here: Place) -> None:
    """Without its folder the daemon goes on, and a signal to end says what it waits for and what the next one does."""
    pause(here)
    away = here.root / "away"
    here.home.queue.rename(away)
    loop = supervisor(here, once=False)
    with logged() as lines:
        async with anyio.create_task_group() as group:
            group.start_soon(loop.serve)
            await until(lambda: {"queue.not_read", "queue.not_watched"} <= {*names(lines())})
            turn = loop.wake
            await until(lambda: loop.wake is not turn)
            away.rename(here.home.queue)
            (here.home.queue / "a.md").write_text("Do it.")
            await until(lambda: "a" in known(here))
            os.kill(os.getpid(), signal.SIGTERM)
        said = lines()
    assert names(said).count("queue.not_read") == names(said).count("queue.not_watched") == 1
    (stopping,) = [line for line in said if line["event"] == "daemon.stopping"]
    told = {key: stopping[key] for key in ("signal", "running", "drain_s", "again")}
    drain_s = here.config.clocks.drain_s
    assert told == {"signal": "SIGTERM", "running": [], "drain_s": drain_s, "again": "interrupts them now"}


@pytest.mark.anyio
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
async def test_one_transcript_that_cannot_be_read_leaves_the_others(here: Place, make: Callable[[Path], None]) -> None:
    """What a run cost whose transcript is no file is unknown, a total that cannot be is passed over, and all end."""
    pause(here)
    for ticket in ("a", "b"):
        here.store.transact(queue.resume, by="test")
        here.claim(ticket)
        here.converse(ticket, {"type": "cost-state", "totalCostUSD": 1e300})
        pause(here)
    here.transcript("a").unlink()
    make(here.transcript("a"))
    assert await supervisor(here).serve() is Exit.FAILED, "the queue is paused"
    kinds = [run.cost and run.cost.kind for ticket in ("a", "b") for run in here.store.read(runs.runs_of, ticket)]
    assert kinds == [CostKind.UNKNOWN, CostKind.ESTIMATED]
    assert known(here) == {"a": State.READY, "b": State.READY}


@pytest.mark.anyio
async def test_a_file_that_cannot_be_moved_is_said_once_and_keeps_no_once_from_its_end(here: Place) -> None:
    """A ticket whose place is taken by a plain file is tried again once, then `--once` ends."""
    here.store.transact(tickets.take_in, "folder", Spec("a", "Do it."))
    here.store.transact(tickets.apply, "a", Cancelled())
    (here.home.queue / "a.md").write_text("Do it.")
    (here.home.queue / "cancelled").write_text("in the way")
    with logged() as lines, anyio.fail_after(30):
        assert await supervisor(here).serve() is Exit.NOTHING_TO_DO
        assert names(lines()).count("source.not_mirrored") == 1


@pytest.mark.anyio
async def test_what_is_to_be_mirrored_outlives_a_database_that_does_not_answer(here: Place) -> None:
    """A ticket whose state could not be read is looked at the next time."""
    here.store.transact(tickets.take_in, "folder", Spec("a", "Do it."))
    here.store.transact(tickets.apply, "a", Cancelled())
    (here.home.queue / "a.md").write_text("Do it.")
    mirror = Mirror(here.store, Folder(here.home.queue))
    mirror.changed("a")
    here.damage("PRAGMA busy_timeout=0")
    with closing(sqlite3.connect(here.home.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await mirror.converge()
    assert mirror.is_behind
    await mirror.converge()
    assert (here.home.queue / "cancelled" / "a.md").exists()
    assert not mirror.is_behind


def test_more_tickets_than_a_query_takes_can_be_looked_at(here: Place) -> None:
    """The states of forty thousand tickets are read, those that are known, and of one no other's."""
    for ticket in ("a", "b"):
        here.store.transact(tickets.take_in, "folder", Spec(ticket, "Do it."))
    many = ["a", *map(str, range(40_000))]

    def ask(rx: Rx) -> dict[str, State]:
        driver = rx.connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)  # SQLite's own; some systems raise it
        return tickets.states(rx, many)

    assert here.store.read(ask) == here.store.read(tickets.states, ["a"]) == {"a": State.READY}


@pytest.mark.anyio
async def test_refusals_that_are_gone_are_forgotten_at_the_first_look(here: Place) -> None:
    """A file that was refused and went away while no daemon ran is not shown any more."""
    here.store.transact(queue.refuse, [Refused("x.md", "empty", "1")])
    assert await supervisor(here).serve() is Exit.NOTHING_TO_DO
    assert here.store.read(queue.refusals) == []


@pytest.mark.anyio
async def test_a_paused_queue_is_said_with_what_ends_it(here: Place) -> None:
    """A start says by whom and why the queue is paused; with a ticket that waits for its end, `--once` has failed."""
    pause(here)
    with logged() as lines:
        assert await supervisor(here).serve() is Exit.NOTHING_TO_DO
        (said,) = [line for line in lines() if line["event"] == "queue.is_paused"]
    assert (said["by"], said["note"], said["end"]) == ("claude", "the key was refused", "ticket-runner resume")
    here.store.transact(tickets.take_in, "folder", Spec("a", "Do it."))
    assert await supervisor(here).serve() is Exit.FAILED
    (event,) = [e.event for e in here.store.read(events.events) if e.event.name is Name.QUEUE_PAUSED]
    assert event.payload["note"] == "the key was refused"


def far_away() -> str:
    """Return hours that are neither today's nor tomorrow's."""
    return f"{(datetime.now(UTC) + timedelta(days=3)):%a} 00:00-24:00"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"active_hours": [far_away()]}, "hours"), ({"machine": {"min_free_disk": 10**18}}, "machine")],
)
async def test_nothing_starts_outside_the_hours_or_without_room(
    tmp_path: Path, settings: dict[str, object], reason: str
) -> None:
    """Outside of active_hours and below a floor a ready ticket is left alone, which is logged once."""
    here = Place(tmp_path, {"poll_s": 0.05} | settings)
    with closing(here.store), logged() as lines:
        here.store.transact(tickets.take_in, "folder", Spec("a", "Do it."))
        loop = supervisor(here, once=False)
        async with anyio.create_task_group() as group:
            group.start_soon(loop.serve)
            await until(lambda: loop.closed)
            turn = loop.wake
            await until(lambda: loop.wake is not turn)
            os.kill(os.getpid(), signal.SIGTERM)
        assert await supervisor(here).serve() is Exit.FAILED, "it waits"
        said = [line["reason"] for line in lines() if line["event"] == "queue.closed"]
        assert said == [reason, reason], "once by each daemon"
        assert known(here) == {"a": State.READY}
        assert here.store.read(tickets.get, "a").ticket.token == 0


@pytest.mark.anyio
async def test_what_another_daemon_claimed_and_left_is_put_back_while_this_one_runs(here: Place) -> None:
    """A ticket without a worktree, claimed by a daemon that falls silent, is ready again when its lease has ended."""
    here.store.transact(tickets.take_in, "folder", Spec("a", "Do it."))
    other = here.store.transact(queue.begin_epoch, "elsewhere", "elsewhere:/home", 1)
    assert here.store.transact(claims.take_next, epoch=other, home="elsewhere:/home", lease_s=3600)
    pause(here)
    loop = supervisor(here, once=False)
    async with anyio.create_task_group() as group:
        group.start_soon(loop.serve)
        await until(lambda: loop.closed)
        assert known(here) == {"a": State.RUNNING}
        here.store.transact(claims.renew, "a", 1, -1)
        await until(lambda: known(here) == {"a": State.READY})
        os.kill(os.getpid(), signal.SIGTERM)
    assert here.store.read(tickets.get, "a").ticket.crashes == 1


@pytest.mark.anyio
async def test_a_wait_ends_when_the_clock_is_put_back_to_before_it_began(here: Place) -> None:
    """What was put back by a clock that was a day ahead is due; the time that a ticket itself asks for stands."""
    ahead_us = round((datetime.now(UTC) + timedelta(days=1)).timestamp() * 1e6)
    with closing(Store.open(here.config.database_url, clock=lambda: ahead_us)) as store:
        store.transact(tickets.take_in, "folder", Spec("a", "Do it."))
        store.transact(tickets.take_in, "folder", Spec("b", "Do it.", not_before_us=ahead_us + 1))
        epoch = store.transact(queue.begin_epoch, "host", here.home.name, 1)
        assert store.transact(claims.take_next, epoch=epoch, home=here.home.name, lease_s=1)
        store.transact(tickets.apply, "a", PutBack(1, Cause.ATTEMPT, ahead_us + 30_000_000, "failed"))
    pause(here)
    assert await supervisor(here).serve() is Exit.FAILED, "it waits for the queue to go on"
    due_us = {ticket: here.store.read(tickets.get, ticket).ticket.not_before_us for ticket in ("a", "b")}
    assert due_us == {"a": 0, "b": ahead_us + 1}


@pytest.mark.anyio
async def test_a_deadline_that_passed_with_no_daemon_is_seen_at_the_start(here: Place) -> None:
    """A question whose deadline passed while no daemon ran has its default for an answer after the first turn."""
    here.claim("a")
    run = here.converse("a")
    here.end(run, 1)
    asks = partial(questions.ask, run=run, default="Yes.", deadline_s=0)
    here.store.transact(asks, "a", 1, "Up?")
    here.store.transact(tickets.apply, "a", Held(1, Reason.QUESTION))
    pause(here)
    assert await supervisor(here).serve() is Exit.FAILED, "it waits for the queue to go on"
    assert known(here) == {"a": State.READY}
    (question,) = here.store.read(questions.questions_of, "a")
    assert (question.answer, question.is_by_default) == ("Yes.", True)


@pytest.mark.anyio
async def test_a_ticket_whose_branch_has_no_room_is_held_before_it_costs(here: Place) -> None:
    """Where the repository has a branch below `ticket/<id>` that ticket alone is held, with what to do."""
    git(here.root / "repo", "branch", "ticket/a/old")
    here.store.transact(tickets.take_in, "folder", Spec("a", "Do it."))
    assert await supervisor(here).serve() is Exit.TICKET_HELD
    ticket = here.store.read(tickets.get, "a").ticket
    assert ticket.reason is Reason.WORKTREE
    assert "has a branch `ticket/a/old`, so git can make no `ticket/a` there" in ticket.note
    assert here.store.read(runs.runs_of, "a") == []
    assert here.store.read(queue.paused) is None


@asynccontextmanager
async def waits_for_the_origin(here: Place, begin: Callable[[], object]) -> AsyncIterator[Callable[[], bool]]:
    """Let the repository answer nothing from now on; give, when git waits for it, what says whether it still does."""
    silent = here.root / "repo/.git/HEAD"
    silent.unlink()
    os.mkfifo(silent)
    begin()
    writers: list[int] = []

    def is_read() -> bool:
        with suppress(OSError):  # nobody reads
            writers.append(os.open(silent, os.O_WRONLY | os.O_NONBLOCK))
        return bool(writers)

    await until(is_read)
    waits = select.poll()
    waits.register(writers[0], 0)  # POLLERR comes unasked, when nobody reads any more
    with os.fdopen(writers[0], "wb"):
        yield lambda: not waits.poll(0)


@pytest.mark.anyio
async def test_a_daemon_that_ends_waits_for_no_fetch_of_upkeep(tmp_path: Path) -> None:
    """Where only a repository that does not answer could say what a worktree holds, it stays; who waits is told."""
    here = Place(tmp_path, {"poll_s": 0.05, "keep": {"worktrees_days": 0}})
    said: list[str] = []
    with closing(here.store):
        tree = here.claim("a")
        (tree / "work.txt").touch()
        here.repository.commit_all("a", "Work")
        here.store.transact(tickets.apply, "a", Held(1, Reason.OPERATOR))
        pause(here)
        loop = supervisor(here, once=False)

        async def ask() -> None:
            said.extend(await loop.upkeep.ask())

        async with anyio.create_task_group() as group:
            group.start_soon(loop.serve)
            await until(lambda: loop.closed)
            await ask()
            here.store.transact(tickets.apply, "a", Cancelled())
            async with waits_for_the_origin(here, lambda: group.start_soon(ask)) as waits:
                group.start_soon(ask)
                await checkpoint()
                os.kill(os.getpid(), signal.SIGTERM)
                await until(lambda: not waits())
        assert tree.exists()
    assert [line.partition(": ")[2].partition(":")[0] for line in said] == [
        "worktree left until the repository answers",
        "the daemon ends",
    ]


@pytest.mark.anyio
async def test_a_second_signal_ends_the_fetch_of_a_claim(here: Place) -> None:
    """A claim that waits for a repository that does not answer is interrupted at once, and its ticket is due again."""
    here.store.transact(tickets.take_in, "folder", Spec("a", "Do it."))
    pause(here)
    loop = supervisor(here, once=False)

    def go_on() -> None:
        here.store.transact(queue.resume, by="test")
        loop.wake.set()

    async with anyio.create_task_group() as group:
        group.start_soon(loop.serve)
        await until(lambda: loop.closed)
        async with waits_for_the_origin(here, go_on) as waits:
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: loop.draining)
            assert waits()
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: not waits())
    ticket = here.store.read(tickets.get, "a").ticket
    assert (ticket.state, ticket.not_before_us, ticket.waits, ticket.attempts) == (State.READY, 0, 0, 0)
    assert {e.event.payload.get("cause") for e in here.store.read(events.events, ticket="a")} == {None, Cause.DRAIN}


@pytest.mark.anyio
async def test_a_daemon_that_is_told_to_stop_answers_nothing(here: Place) -> None:
    """A deadline that passes while a daemon drains is left to the next one: what it lets go on would not start."""
    here.claim("a")
    run = here.converse("a")
    here.end(run, 1)
    here.store.transact(partial(questions.ask, run=run, default="Yes.", deadline_s=0), "a", 1, "Up?")
    here.store.transact(tickets.apply, "a", Held(1, Reason.QUESTION))
    loop = supervisor(here)
    loop.draining = True
    await loop.serve()
    assert known(here) == {"a": State.HELD}
    assert [question.answer for question in here.store.read(questions.questions_of, "a")] == [None]


@pytest.mark.anyio
async def test_a_ticket_that_ends_while_the_last_turn_looks_around_has_its_file_moved(here: Place) -> None:
    """A drain is over only when the source shows what ended after its last turn had begun."""
    here.store.transact(tickets.take_in, "folder", Spec("ends", "Do it.", base="gone"))
    (here.home.queue / "ends.md").write_text("Do it.")
    pause(here)
    loop = supervisor(here, once=False)
    source = loop.source
    assert isinstance(source, Slow)
    async with anyio.create_task_group() as group:
        group.start_soon(loop.serve)
        await until(lambda: loop.closed)
        here.store.transact(tickets.take_in, "folder", Spec("slow", "Do it."))
        here.store.transact(tickets.apply, "slow", Cancelled())
        with here.repository.alone():  # no claim gets its worktree
            here.store.transact(queue.resume, by="test")
            loop.wake.set()
            await until(lambda: "ends" in loop.stops)
            loop.mirror.changed("slow")
            os.kill(os.getpid(), signal.SIGTERM)
            await until(lambda: loop.draining and source.begun.is_set())
        await until(lambda: not loop.stops)
        source.goes_on.set()
    assert known(here)["ends"] is State.HELD
    assert (here.home.queue / "held" / "ends.md").exists()
