"""Everything that the table of all tickets shows, in as many queries for a thousand tickets as for one."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, and_, case, exists, func, select, true

from runner.budget import CostKind
from runner.events import Name, Value
from runner.session import Kind
from runner.store import schema
from runner.store.connection import Rx
from runner.store.text import to_payload
from runner.store.tickets import to_ticket
from tickets.ticket import State, Ticket

_t = schema.ticket.c
_r = schema.run.c
_s = schema.session.c
_e = schema.event.c
_f = schema.effect.c


@dataclass(frozen=True, slots=True)
class Sums:
    """What runs add up to."""

    runs: int = 0
    resumed: int = 0
    fallbacks: int = 0
    turns: int = 0
    cost_microusd: int = 0
    estimated: bool = False
    """Some of the cost is priced from usage."""
    unknown: bool = False
    """Some run's cost is not known and counts as nothing."""
    cut: bool = False
    """A response was, or may have been, in flight when some run's process died: its price is in no total."""


@dataclass(frozen=True, slots=True)
class Line:
    """A ticket without its text, and what became of it."""

    ticket: Ticket
    title: str
    source: str
    priority: int
    budget_microusd: int | None
    owner: int | None
    lease_until_us: int | None
    home: str | None
    branch: str | None
    is_delivered: bool
    """It is done, and the repository had its branch."""
    base_sha: str | None
    asked_not_before_us: int
    taken_at_us: int
    changed_at_us: int
    sums: Sums
    session: str | None
    generation: int | None
    prompt_sha: str | None
    is_outdated: bool
    """The session's rules are older than those of the daemon that resumed it last."""
    last_event: Name | None
    last_event_at_us: int | None
    last_payload: Mapping[str, Value]
    owner_home: str | None
    owner_host: str | None
    effects: Mapping[str, int]
    """How many effects are in which state."""


def overview(
    rx: Rx,
    *,
    states: Collection[State] | None = None,
    since_us: int | None = None,
    ids: Collection[str] | None = None,
) -> list[Line]:
    """Return the tickets in one of `states`, that changed at `since_us` or later, with these `ids`, oldest first."""
    chosen = select(_t.id)
    if ids is not None:
        chosen = chosen.where(_t.id.in_(ids))
    if states is not None:
        chosen = chosen.where(_t.state.in_([*states]))
    if since_us is not None:
        chosen = chosen.where(_t.changed_at_us >= since_us)
    sums, effects = _sums(rx, chosen), _effects(rx, chosen)
    return [
        Line(
            ticket=to_ticket(found),
            **{name: found[name] for name in _PLAIN},
            is_outdated=bool(found["is_outdated"]),
            is_delivered=bool(found["is_delivered"]),
            sums=sums.get(found["id"], Sums()),
            last_event=None if found["last_event"] is None else Name(found["last_event"]),
            last_payload={} if found["last_payload"] is None else to_payload(found["last_payload"]),
            effects=effects[found["id"]],
        )
        for found in rx.connection.execute(_lines(chosen)).mappings()
    ]


def sums_since(rx: Rx, since_us: int) -> Sums:
    """Return what the runs that began at `since_us` or later add up to."""
    return _to_sums(*rx.connection.execute(select(*_SUMS).where(_r.started_at_us >= since_us)).one())


def counts(rx: Rx) -> dict[State, int]:
    """Return how many tickets are in which state, in the order of the states."""
    query = select(_t.state, func.count()).group_by(_t.state)
    found = {State(state): int(count) for state, count in rx.connection.execute(query)}
    return {state: found[state] for state in State if state in found}


_PLAIN = (
    "title",
    "source",
    "priority",
    "budget_microusd",
    "owner",
    "lease_until_us",
    "home",
    "branch",
    "base_sha",
    "asked_not_before_us",
    "taken_at_us",
    "changed_at_us",
    "session",
    "generation",
    "prompt_sha",
    "last_event_at_us",
    "owner_home",
    "owner_host",
)


def _lines(chosen: Select[tuple[str]]) -> Select[tuple[object, ...]]:
    """Return the query for each ticket with its latest session and event; its text stays where it is."""
    all_of_them = schema.session.alias()
    pushed = schema.event.alias()
    is_pushed = exists().where(pushed.c.ticket == _t.id, pushed.c.name == Name.BRANCH_PUSHED)
    generation = select(func.max(all_of_them.c.generation)).where(all_of_them.c.ticket == _t.id).scalar_subquery()
    return (
        select(
            *[column for column in _t if column.name != "text"],
            _s.id.label("session"),
            _s.generation,
            _s.prompt_sha,
            and_(_s.latest_prompt_sha.is_not(None), _s.latest_prompt_sha != _s.prompt_sha).label("is_outdated"),
            and_(_t.state == State.DONE, is_pushed).label("is_delivered"),
            _e.name.label("last_event"),
            _e.at_us.label("last_event_at_us"),
            _e.payload.label("last_payload"),
            schema.epoch.c.home.label("owner_home"),
            schema.epoch.c.host.label("owner_host"),
        )
        .select_from(schema.ticket)
        .outerjoin(schema.session, (_s.ticket == _t.id) & (_s.generation == generation))
        .outerjoin(schema.event, (_e.ticket == _t.id) & (_e.seq == _t.seq))
        .outerjoin(schema.epoch, schema.epoch.c.id == _t.owner)
        .where(_t.id.in_(chosen))
        .order_by(_t.taken_at_us, _t.id)
    )


def _sums(rx: Rx, chosen: Select[tuple[str]]) -> dict[str, Sums]:
    query = select(_r.ticket, *_SUMS).where(_r.ticket.in_(chosen)).group_by(_r.ticket)
    return {ticket: _to_sums(*amounts) for ticket, *amounts in rx.connection.execute(query)}


def _to_sums(runs: int, resumed: int, fallbacks: int, turns: int, microusd: int, *marks: int) -> Sums:
    estimated, unknown, cut = map(bool, marks)
    return Sums(runs, int(resumed), int(fallbacks), int(turns), int(microusd), estimated, unknown, cut)


def _effects(rx: Rx, chosen: Select[tuple[str]]) -> dict[str, dict[str, int]]:
    """Count effects by state; what waits for a person has words of its own."""
    unknown = and_(_f.state == "claimed", _f.outcome.is_not(None))
    unapproved = and_(_f.state == "wanted", _f.needs_approval, _f.approved_by.is_(None))
    state = case((unknown, "unknown"), (unapproved, "approval"), else_=_f.state)
    query = select(_f.ticket, state, func.count()).where(_f.ticket.in_(chosen)).group_by(_f.ticket, state)
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for ticket, name, count in rx.connection.execute(query):
        counts[ticket][name] = count
    return counts


def _sum(column: ColumnElement[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(column), 0)


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return _sum(case((condition, 1), else_=0))


_SUMS = (
    func.count(),
    _count(_r.kind == Kind.RESUMED),
    _count(_r.kind == Kind.FALLBACK),
    _sum(_r.turns),
    _sum(_r.cost_microusd),
    _count(_r.cost_kind == CostKind.ESTIMATED),
    _count(_r.cost_kind == CostKind.UNKNOWN),
    _count(_r.cut.is_(true())),
)
