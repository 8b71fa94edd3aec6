"""The log: read in order, in bounded pieces, and asked what a claim has to know of it.

`Tx.log` writes it. Does not know who reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, RowMapping, func, select

from runner.events import FACTS, Event, Name, Value
from runner.store import schema
from runner.store.connection import Rx
from runner.store.text import to_payload

_e = schema.event.c

LET_GO = (Name.TICKET_RETRIED, Name.TICKET_RELEASED)
"""A person let the ticket go on: what is counted in a row begins anew."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event and its place among those of all tickets."""

    id: int
    """Rises in the order of commits, with gaps."""
    event: Event


def events(rx: Rx, *, ticket: str | None = None, since: int = 0, limit: int = 1000) -> list[Entry]:
    """Return the first `limit` entries after the one with the id `since`, of one ticket or of all."""
    query = select(schema.event).where(_e.id > since).order_by(_e.id).limit(limit)
    if ticket is not None:
        query = query.where(_e.ticket == ticket)
    return [Entry(found["id"], _event(found)) for found in rx.connection.execute(query).mappings()]


def latest(rx: Rx, ticket: str, *, limit: int) -> list[Entry]:
    """Return a ticket's last `limit` entries, oldest first."""
    query = select(schema.event).where(_e.ticket == ticket).order_by(_e.seq.desc()).limit(limit)
    found = rx.connection.execute(query).mappings().all()
    return [Entry(entry["id"], _event(entry)) for entry in reversed(found)]


def names_since(rx: Rx, ticket: str, start: Name) -> list[Name]:
    """Return what followed a ticket's last event named `start`, oldest first; everything when there is none."""
    query = select(_e.name).where(_e.ticket == ticket, _e.seq > _last_seq(ticket, start)).order_by(_e.seq)
    return [Name(name) for name in rx.connection.execute(query).scalars()]


def round_names(rx: Rx, ticket: str) -> list[Name]:
    """Return what happened in a ticket's present round, oldest first."""
    return names_since(rx, ticket, Name.TICKET_TAKEN)


def open_tools(rx: Rx, ticket: str) -> list[Event]:
    """Return the starts of the tools that the ticket's latest run with any tool began and did not end."""
    latest = select(_e.run).where(_e.ticket == ticket, _e.name == Name.TOOL_STARTED).order_by(_e.seq.desc()).limit(1)
    query = (
        select(schema.event)
        .where(_e.ticket == ticket, _e.run == latest.scalar_subquery())
        .where(_e.name.in_([Name.TOOL_STARTED, Name.TOOL_ENDED]))
        .order_by(_e.seq)
    )
    started: dict[object, Event] = {}
    for event in map(_event, rx.connection.execute(query).mappings()):
        tool = event.payload.get("tool_use_id")
        if event.name is Name.TOOL_STARTED:
            started[tool] = event
        else:
            started.pop(tool, None)
    return list(started.values())


def facts(rx: Rx, ticket: str) -> list[Event]:
    """Return the events that a ticket is folded from, oldest first."""
    query = select(schema.event).where(_e.ticket == ticket, _e.name.in_([*FACTS])).order_by(_e.seq)
    return [_event(found) for found in rx.connection.execute(query).mappings()]


def moved(rx: Rx, ticket: str) -> bool:
    """Return whether the ticket's present worktree was once at another path."""
    made = last(rx, ticket, Name.WORKTREE_MADE)
    return made is not None and made.payload.get("moved") is True


def may_be_asking(rx: Rx, run: str) -> bool:
    """Return whether the model may have been asked when a run was last heard of: it was in no tool.

    Claude Code asks at once when it has started, which a daemon that dies then has not logged yet. Tools of ours do not
    count: they answer at once, and the next request is on its way before their end is logged.
    """
    names = (Name.TOOL_STARTED, Name.TOOL_ENDED)
    query = select(schema.event).where(_e.run == run, _e.name.in_(names)).order_by(_e.seq)
    events_ = [_event(found) for found in rx.connection.execute(query).mappings()]
    ended = {event.payload["tool_use_id"] for event in events_ if event.name is Name.TOOL_ENDED}
    tools = [event.payload for event in events_ if event.name is Name.TOOL_STARTED]
    in_tool = any(
        tool["tool_use_id"] not in ended and not str(tool["tool"]).startswith("mcp__runner__") for tool in tools
    )
    return not in_tool


def last(rx: Rx, ticket: str, name: Name) -> Event | None:
    """Return a ticket's last event of a name, None when there is none."""
    query = select(schema.event).where(_e.ticket == ticket, _e.name == name).order_by(_e.seq.desc()).limit(1)
    found = rx.connection.execute(query).mappings().one_or_none()
    return None if found is None else _event(found)


def is_logged(rx: Rx, ticket: str, name: Name, part: Mapping[str, Value], *, since_us: int = 0) -> bool:
    """Return whether the log has an event of that name since then whose payload has all of `part` in it."""
    query = select(schema.event).where(_e.ticket == ticket, _e.name == name, _e.at_us >= since_us)
    found = map(_event, rx.connection.execute(query).mappings())
    return any(event.payload.items() >= part.items() for event in found)


def active_us(rx: Rx, ticket: str) -> dict[str, int]:
    """Return how long those of a ticket's runs were active for which that was saved."""
    query = select(schema.event).where(_e.ticket == ticket, _e.name == Name.RUN_ENDED)
    ended = {
        event.run: event.payload.get("active_us") for event in map(_event, rx.connection.execute(query).mappings())
    }
    return {run: us for run, us in ended.items() if run is not None and isinstance(us, int)}


def failed_check(rx: Rx, ticket: str) -> str | None:
    """Return the command of the check that failed after the agent last finished, or None."""
    query = (
        select(schema.event)
        .where(_e.ticket == ticket, _e.seq > _last_seq(ticket, Name.AGENT_FINISHED), _e.name == Name.CHECK_FAILED)
        .order_by(_e.seq.desc())
        .limit(1)
    )
    failed = rx.connection.execute(query).mappings().one_or_none()
    return None if failed is None else str(_event(failed).payload.get("command"))


def failures(rx: Rx, ticket: str) -> list[str | None]:
    """Return what each conversation's work failed at its check, as a hash, since a person last let the ticket go on.

    The latest last. A conversation that went to no check is not among them; a check that was run again counts once.
    """
    query = (
        select(schema.event)
        .where(_e.ticket == ticket, _e.name.in_([Name.RUN_STARTED, Name.CHECK_FAILED, *LET_GO]))
        .order_by(_e.seq)
    )
    seen: list[str | None] = [None]
    for event in map(_event, rx.connection.execute(query).mappings()):
        if event.name in LET_GO:
            seen = [None]
        elif event.name is Name.CHECK_FAILED:
            seen[-1] = str(event.payload["failure_sha"])
        elif seen[-1] is not None:
            seen.append(None)
    return [failure for failure in seen if failure is not None]


def is_set_up(rx: Rx, ticket: str) -> bool:
    """Return whether the set-up of the ticket's present worktree has ended well."""
    return Name.SETUP_ENDED in names_since(rx, ticket, Name.WORKTREE_MADE)


def is_filled(rx: Rx, ticket: str) -> bool:
    """Return whether the ticket's present worktree has its submodules, if there are any."""
    return Name.WORKTREE_FILLED in names_since(rx, ticket, Name.WORKTREE_MADE)


def delivered(rx: Rx, ticket: str) -> str | None:
    """Return the commit that the repository was last seen to have on the ticket's branch, None when it never was."""
    pushed = last(rx, ticket, Name.BRANCH_PUSHED)
    return None if pushed is None else str(pushed.payload["sha"])


def _last_seq(ticket: str, name: Name) -> ColumnElement[int]:
    last = select(func.max(_e.seq)).where(_e.ticket == ticket, _e.name == name)
    return func.coalesce(last.scalar_subquery(), 0)


def _event(found: RowMapping) -> Event:
    return Event(
        name=Name(found["name"]),
        ticket=found["ticket"],
        seq=found["seq"],
        at_us=found["at_us"],
        run=found["run"],
        payload=to_payload(found["payload"]),
        version=found["version"],
    )
