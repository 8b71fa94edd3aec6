"""What an operator asks, as frozen values; the same for the terminal and as JSON.

Reads the store, the lock, the queue folder, the machine's room and the transcript of a run
that goes on, so it works with the daemon down, and needs neither the SDK nor git.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from runner import machine
from runner.admission import Closed, Pause, why_closed
from runner.budget import Use
from runner.caps import uses
from runner.config import Config
from runner.days import day_start_us
from runner.home import Home
from runner.live import Live, live
from runner.store import Rx, claims, effects, log, overview, questions, queue, runs, sessions, tickets
from runner.store.effects import EffectRow
from runner.store.overview import Line, Sums
from runner.store.questions import Question
from runner.store.runs import RunRow
from runner.store.sessions import SessionRow
from runner.store.tickets import Row
from runner.why import Asked, Facts, Last, Owner, Queue, Why, closed, in_the_folder, not_taken, why
from tickets import folder
from tickets.front_matter import NotATicket
from tickets.source import Refused
from tickets.ticket import State

_LAST_EVENTS = 20


@dataclass(frozen=True, slots=True)
class Around:
    """What is known before the database is asked."""

    config: Config
    daemon: int | None
    """The pid of the daemon that holds the home, 0 when it cannot be told, None when there is none."""
    shortage: str | None
    """Which floor the machine is below."""
    files: tuple[str, ...]
    """The ids of the files in the queue folder."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return what a configuration's directories and the machine say."""
        files = tuple(folder.names(config.queue_directory))
        return cls(config, Home.of(config).holder(), machine.short(config), files)

    @property
    def works(self) -> bool:
        """Whether a daemon runs, without which no run goes on."""
        return self.daemon is not None

    @property
    def home(self) -> str:
        """What the database calls the home."""
        return Home.of(self.config).name


@dataclass(frozen=True, slots=True)
class Overview:
    """The queue at one moment."""

    now_us: int
    lines: list[Line]
    why: Mapping[str, Why]
    """Of each line, by its ticket."""
    waiting: list[str]
    """The ids of the files that nothing has taken in yet."""
    pause: Pause | None
    closed: Why | None
    """Why no ticket is started."""
    refused: list[Refused]
    besides: Mapping[State, int]
    """How many tickets there are that are no line here, by state."""
    today: Sums
    """What the runs that began today add up to."""
    reserved_microusd: int
    daemon: int | None
    """See `Around`."""


@dataclass(frozen=True, slots=True)
class Details:
    """Everything that is known of one ticket."""

    now_us: int
    row: Row
    why: Why
    spent_microusd: int
    cap_microusd: int
    sums: Sums
    account: str | None
    """What the agent last said that it did."""
    sessions: list[SessionRow]
    runs: list[RunRow]
    effects: list[EffectRow]
    questions: list[Question]
    events: list[log.Entry]
    live: Live | None
    """What its run that goes on has come to."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a ticket is not running, what would make it run, and the facts behind that."""

    id: str
    why: Why
    daemon: int | None
    details: Details | None = None
    """None for a file that is no ticket."""
    place: int | None = None
    """In the line of those that are due, from 1."""
    running: int = 0
    """How many tickets of the queue run."""
    slots: int = 0
    attempts: int = 0
    """How many failures of its own hold it."""
    caps: Sequence[Use] = ()


def look(rx: Rx, around: Around, *, states: Collection[State], since_us: int | None = None) -> Overview:
    """Return the queue: tickets in `states`, and those that changed at `since_us` or later."""
    day_us = day_start_us(rx.now_us, around.config.zone)
    _, reserved = runs.day_money(rx, day_us)
    lines = overview.overview(rx, states=states, since_us=since_us)
    refused, pause = queue.refusals(rx), queue.paused(rx)
    waiting, wrong = _waiting(around, tickets.states(rx, around.files), refused)
    shut = _shut(rx, around)
    return Overview(
        rx.now_us,
        lines,
        _why(rx, around, lines, shut),
        waiting,
        pause,
        None if shut is None else closed(shut),
        [*refused, *wrong],
        Counter(overview.counts(rx)) - Counter(line.ticket.state for line in lines),
        overview.sums_since(rx, day_us),
        reserved,
        around.daemon,
    )


def nothing(around: Around) -> Overview:
    """Return the queue of a configuration that nothing has run with yet."""
    now_us = round(datetime.now(UTC).timestamp() * 1_000_000)
    waiting, wrong = _waiting(around, (), ())
    return Overview(now_us, [], {}, waiting, None, None, wrong, {}, Sums(), 0, around.daemon)


def look_at(rx: Rx, ticket: str, around: Around) -> Details:
    """Return one ticket.

    Raises:
        UnknownTicket: There is none.
    """
    row = tickets.get(rx, ticket)
    line, history = overview.overview(rx, ids=[ticket])[0], runs.runs_of(rx, ticket)
    return Details(
        rx.now_us,
        row,
        _why(rx, around, [line], _shut(rx, around))[ticket],
        line.sums.cost_microusd,
        row.spec.budget_microusd or around.config.limits.ticket_microusd,
        line.sums,
        sessions.last_account(rx, ticket),
        sessions.sessions_of(rx, ticket),
        history,
        effects.effects(rx, ticket=ticket),
        questions.questions_of(rx, ticket),
        log.latest(rx, ticket, limit=_LAST_EVENTS),
        live(Home.of(around.config), history) if around.works and line.owner_home == around.home else None,
    )


def explain(rx: Rx, ticket: str, around: Around) -> Explanation:
    """Return why one ticket is not running, or a file of the queue folder is no ticket.

    Raises:
        UnknownTicket: There is neither.
    """
    if ticket in around.files and not tickets.states(rx, [ticket]):
        said = [refusal.problem for refusal in queue.refusals(rx) if refusal.file == folder.file_of(ticket)]
        return explain_file(ticket, around, said[0] if said else None)
    view, line = look_at(rx, ticket, around), claims.line(rx, around.home)
    return Explanation(
        ticket,
        view.why,
        around.daemon,
        view,
        place=line.index(ticket) + 1 if ticket in line else None,
        running=_running(rx, around),
        slots=around.config.concurrency,
        attempts=around.config.limits.attempts,
        caps=uses(rx, ticket, around.config),
    )


def explain_file(ticket: str, around: Around, said: str | None = None) -> Explanation:
    """Return why a file of the queue folder is no ticket, given what a daemon has said of it."""
    try:
        folder.look_at(around.config.queue_directory, ticket)
    except NotATicket as error:
        said = said or str(error)
    because = in_the_folder(has_daemon=around.works) if said is None else not_taken(said)
    return Explanation(ticket, because, around.daemon)


def _waiting(around: Around, known: Collection[str], refused: Collection[Refused]) -> tuple[list[str], list[Refused]]:
    """Return the files that are no tickets and may become some, and those that will not, as no daemon has said yet."""
    said = {refusal.file for refusal in refused}
    waiting: list[str] = []
    wrong: list[Refused] = []
    for name in around.files:
        if name not in known and folder.file_of(name) not in said:
            try:
                if not around.works:
                    folder.look_at(around.config.queue_directory, name)
                waiting.append(name)
            except NotATicket as error:
                wrong.append(Refused(error.where, error.problem, ""))
    return waiting, wrong


def _why(rx: Rx, around: Around, lines: Collection[Line], shut: Closed | None) -> dict[str, Why]:
    """Return why each ticket is where it is, in as many queries for a thousand as for one."""
    due = {ticket: ahead for ahead, ticket in enumerate(claims.line(rx, around.home))}
    asked = questions.open_by_ticket(rx)
    of_all = Queue(
        rx.now_us,
        around.home,
        has_daemon=around.works,
        slots=around.config.concurrency,
        running=_running(rx, around),
        attempts=around.config.limits.attempts,
        shut=shut,
    )
    return {
        line.ticket.id: why(_facts(line, due.get(line.ticket.id, 0), asked.get(line.ticket.id, [])), of_all)
        for line in lines
    }


def _facts(line: Line, ahead: int, asked: Sequence[Question]) -> Facts:
    owner = None
    if line.owner_home is not None and line.owner_host is not None:
        owner = Owner(line.owner_home, line.owner_host, line.lease_until_us or 0)
    return Facts(
        line.ticket,
        branch=line.branch if line.is_delivered else None,
        home=line.home,
        owner=owner,
        asked_not_before_us=line.asked_not_before_us,
        ahead=ahead,
        effects=line.effects,
        asked=_asked(asked),
        last=None if line.last_event is None else Last(line.last_event, line.last_payload, line.last_event_at_us or 0),
    )


def _asked(open_: Sequence[Question]) -> Asked | None:
    if not open_:
        return None
    deadlines = [question.deadline_us for question in open_ if question.deadline_us is not None]
    return Asked(open_[0].asked_at_us, max(deadlines) if len(deadlines) == len(open_) else None)


def _running(rx: Rx, around: Around) -> int:
    """Return how many slots are taken: tickets that a dead daemon left as running have none."""
    return claims.running(rx, around.home) if around.works else 0


def _shut(rx: Rx, around: Around) -> Closed | None:
    return why_closed(queue.paused(rx), around.config.hours, around.shortage, now_us=rx.now_us)
