"""A store for tests: a clock that they move, what it told, and the steps that most of them need."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from runner.events import Event
from runner.session import Kind
from runner.store import Store, Tx, claims, log, queue, runs, sessions, tickets
from tickets.ticket import Spec

SECOND = 1_000_000
HOME = "host:/home"


@dataclass
class Clock:
    """A clock that a test moves."""

    now_us: int = 1_000 * SECOND

    def __call__(self) -> int:
        """Return the time."""
        return self.now_us

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.now_us += round(seconds * SECOND)


@dataclass
class Place:
    """An open database, its clock, and what it told."""

    url: str
    clock: Clock = field(default_factory=Clock)
    told: list[Event] = field(default_factory=list)
    store: Store = field(init=False)
    epoch: int = field(init=False)

    def __post_init__(self) -> None:
        self.store = Store.open(self.url, clock=self.clock, on_event=self.told.append)
        self.epoch = self.start()

    def start(self, home: str = HOME) -> int:
        """Start a daemon."""
        return self.store.transact(queue.begin_epoch, "host", home, 1)

    def take(self, *ids: str, priority: int = 0) -> None:
        """Take tickets in, a second apart."""
        for ticket in ids:
            assert self.store.transact(tickets.take_in, "folder", Spec(ticket, "text", priority=priority))
            self.clock.pass_s(1)

    def claim(self, epoch: int | None = None, home: str = HOME) -> tickets.Row | None:
        """Claim the next ticket for ten seconds."""
        return self.store.transact(claims.take_next, epoch=epoch or self.epoch, home=home, lease_s=10)

    def run(self, ticket: str, session: str | None = None, kind: Kind | None = None) -> str:
        """Begin a run of a claimed ticket, in a new session or the given one."""

        def begin(tx: Tx) -> str:
            token = tickets.get(tx, ticket).ticket.token
            generation = len(sessions.sessions_of(tx, ticket)) + 1
            name = session or f"{ticket}-session-{generation}"
            if session is None:
                sessions.open_session(tx, ticket, token, session=name, generation=generation, prompt_sha="sha")
            return runs.begin_run(
                tx,
                ticket=ticket,
                token=token,
                session=name,
                kind=kind or (Kind.FIRST if session is None else Kind.RESUMED),
                carried_microusd=0,
                transcript_bytes=0,
                allowance_microusd=1_000_000,
            ).id

        return self.store.transact(begin)

    def log(self, ticket: str) -> list[Event]:
        """Return a ticket's log."""
        return [entry.event for entry in self.store.read(log.events, ticket=ticket)]


def claimed(database: str) -> Iterator[Place]:
    """Give an open database with one daemon and a claimed ticket, closed at the end."""
    place = Place(database)
    place.take("a")
    place.claim()
    with closing(place.store):
        yield place
