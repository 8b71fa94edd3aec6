"""How status looks at a terminal.

What came from a ticket, a file or an agent is shown as text: no markup in it is obeyed,
and no control character reaches the terminal.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from runner.budget import Cost, CostKind
from runner.budget import told as used
from runner.config import unknown_tools
from runner.events import Event
from runner.live import Live
from runner.session import Kind
from runner.status import Details, Explanation, Overview
from runner.store.effects import OPEN as OPEN_EFFECTS
from runner.store.effects import EffectRow
from runner.store.log import Entry
from runner.store.overview import Line, Sums
from runner.store.questions import Question
from runner.store.runs import RunRow
from runner.table import aligned, plain
from runner.why import clock, lasted
from tickets.ticket import OPEN, State

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_COLOURS = {State.RUNNING: "cyan", State.HELD: "yellow", State.DONE: "green", State.CANCELLED: "dim"}

_COLUMNS = ("ticket", "state", "why", "session", "gen", "runs", "turns", "cost", "effects", "branch", "age")
_LEFT_OUT = ("session", "branch", "gen", "turns", "effects", "runs", "age")
_EXPLAINED_EVENTS = 8
_NAMED = 10  # files that wait
_FRESH = "fresh"
"""A run in a new session: its own could not go on, or a person or newer rules asked for it; `closed` says which."""


def overview(view: Overview, console: Console) -> None:
    """Print one row per ticket, and what concerns them all."""
    if view.lines:
        rows = [_cells(line, view) for line in view.lines]
        console.print(aligned(_COLUMNS, rows, console, fold="why", leave_out=_LEFT_OUT), soft_wrap=True, end="")
    else:
        console.print(_none(view.besides))
    total = sum(line.sums.cost_microusd for line in view.lines)
    spent = dollars(
        total,
        estimated=any(line.sums.estimated or line.sums.unknown for line in view.lines),
        cut=any(line.sums.cut for line in view.lines),
    )
    today = f"{spent} for these tickets; today {_spent(view.today)} spent"
    console.print(f"\n{today}, ${view.reserved_microusd / 1e6:.2f} reserved")
    console.print("no daemon runs" if view.daemon is None else f"daemon: pid {view.daemon or 'unknown'}")
    if view.closed is not None:
        by = ""
        if view.pause is not None and view.closed.then:
            by = f" (by {view.pause.by}, {lasted(view.now_us - view.pause.since_us)} ago)"
        console.print(shown(f"{view.closed.sentence}{by}"), style="yellow")
        console.print(view.closed.then, end="\n" if view.closed.then else "")
    elif view.pause is not None:
        console.print("the queue waited for the weather: the next ticket tries whether it is over", style="yellow")
    if view.waiting:
        console.print(shown(f"{_counted_files(len(view.waiting))} in the folder: {', '.join(view.waiting[:_NAMED])}"))
    for refusal in view.refused:
        console.print(shown(f"not taken: {refusal}"), style="yellow")


def details(view: Details, console: Console) -> None:
    """Print everything that is known of one ticket."""
    ticket, row = view.row.ticket, view.row
    console.print(shown(f"{ticket.id}  {ticket.state}  {view.why.sentence}".rstrip()), style="bold")
    facts = {
        "title": row.spec.title,
        "branch": row.branch or "",
        "base": row.base_sha or "",
        "home": row.home or "",
        "round": f"{ticket.round}, claim {ticket.token}, failed attempts {ticket.attempts}",
        "taken": clock(row.taken_at_us),
        "spent": _spent(view.sums),
        "cap": dollars(view.cap_microusd),
        "model": row.spec.model or "",
        "priority": str(row.spec.priority or ""),
        "tools": _tools(row.spec.tools),
        "now": _so_far(view.live),
        "next": view.why.next,
    }
    for name, value in facts.items():
        if value:
            console.print(shown(f"{name:>8}  {value}"))
    console.print()
    console.print(shown(row.spec.text.strip()))
    if view.account is not None:
        console.print("\nthe agent said", style="bold")
        console.print(shown(view.account))
    if view.sessions:
        console.print("\nsessions", style="bold")
    for session in view.sessions:
        marks = [f"closed: {session.closed_reason}"] if session.closed_reason else []
        marks += ["its rules are older than the daemon's"] if session.is_outdated else []
        about = f"{session.generation}  {session.id}  {clock(session.opened_at_us)}"
        console.print(shown(f"  {about}  {'; '.join(marks)}"))
    if view.runs:
        console.print("\nruns", style="bold")
        console.print(_runs(view.runs, console))
    if view.questions:
        console.print("\nquestions", style="bold")
    for question in view.questions:
        console.print(shown(f"  {question.text}\n    -> {_answer(question)}"))
    if view.effects:
        console.print("\neffects", style="bold")
        effects(view.effects, console)
    console.print("\nlast events", style="bold")
    events(view.events, console)


def explanation(view: Explanation, console: Console) -> None:
    """Print why a ticket is not running, what would make it run, and the facts behind that."""
    known = view.details
    console.print(shown(f"{view.id}  {known.row.ticket.state if known else 'in the folder'}"), style="bold")
    told = {"why": view.why.sentence, "next": view.why.next, **({} if known is None else _behind(view, known))}
    told["daemon"] = "none runs" if view.daemon is None else f"pid {view.daemon or 'unknown'}"
    for name, value in told.items():
        if value:
            console.print(shown(f"{name:>8}  {value}"))
    if known is not None:
        console.print("\nlast events", style="bold")
        events(known.events[-_EXPLAINED_EVENTS:], console)


def _behind(view: Explanation, known: Details) -> dict[str, str]:
    """Return the facts behind an explanation, as they are read."""
    ticket = known.row.ticket
    last = known.sessions[-1] if known.sessions else None
    left = dollars(max(known.cap_microusd - known.spent_microusd, 0))
    place = "" if view.place is None else f"; number {view.place} of those that are due"
    undone = [f"{row.key} ({row.word})" for row in known.effects if row.state in OPEN_EFFECTS]
    closed = f", closed: {last.closed_reason}" if last is not None and last.closed_reason else ""
    return {
        "tries": f"claim {ticket.token} of round {ticket.round}; {ticket.attempts} of {view.attempts} failures that"
        f" hold it, {ticket.waits} waits in a row",
        "spent": f"{_spent(known.sums)} of {dollars(known.cap_microusd)}, {left} left",
        "caps": "\n          ".join(used(use) for use in view.caps),
        "slots": f"{view.running} of {view.slots} taken{place}",
        "session": "" if last is None else f"{last.id}, generation {last.generation}{closed}",
        "runs": f"{_counted(known.sums)}, {known.sums.turns} turns",
        "now": _so_far(known.live),
        "effects": ", ".join(undone),
        "home": known.row.home or "",
    }


def effects(rows: Iterable[EffectRow], console: Console) -> None:
    """Print one row per effect."""
    table = plain(("key", "kind", "state", "tries", "outcome"), console, leave_out={"kind", "tries"})
    for row in rows:
        asked = ", ".join(f"{name}={value}" for name, value in row.payload.items())  # what a person says yes or no to
        said = asked if row.waits_for_approval else (row.outcome or "").partition("\n")[0]
        cells = {"key": row.key, "kind": row.kind, "state": row.word, "tries": str(row.attempts), "outcome": said}
        table.add_row(*(shown(cells[str(column.header)]) for column in table.columns))
    console.print(table if table.row_count else "no effects")


def events(entries: Iterable[Entry], console: Console) -> None:
    """Print events, one a line, each with the number that `--since` takes."""
    for entry in entries:
        console.print(shown(f"{entry.id:>6}  {_told(entry.event)}"), soft_wrap=True)


def shown(text: str) -> Text:
    """Return text from anywhere as rich may have it: no markup in it is obeyed."""
    return Text(harmless(text))


def harmless(text: str) -> str:
    """Return text from anywhere as a terminal may have it."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def dollars(microusd: int, *, estimated: bool = False, cut: bool = False) -> str:
    """Return an amount; `~` when it is estimated, `+` when a response that was cut off is in no total."""
    return f"{'~' if estimated else ''}${microusd / 1e6:.4f}{'+' if cut else ''}"


def _cells(line: Line, view: Overview) -> tuple[Text, ...]:
    ticket, sums = line.ticket, line.sums
    why = view.why[ticket.id].sentence.partition("\n")[0]
    return (
        shown(ticket.id),
        Text(ticket.state, style=_COLOURS.get(ticket.state, "")),
        shown("; ".join(part for part in (why, "its rules are older" if line.is_outdated else "") if part)),
        shown((line.session or "")[:8]),
        shown(str(line.generation or "")),
        shown(_counted(sums)),
        shown(str(sums.turns)),
        shown(_spent(sums)),
        shown(", ".join(f"{count} {state}" for state, count in sorted(line.effects.items()))),
        shown(line.branch or ""),
        shown(lasted(view.now_us - line.taken_at_us)),
    )


def _tools(tools: Sequence[str] | None) -> str:
    """Return the tools that a ticket asks for, and which of them are none."""
    if tools is None:
        return ""
    unknown = unknown_tools(tools)
    return (", ".join(tools) or "none") + (f" (no tool has this name: {'; '.join(unknown)})" if unknown else "")


def _so_far(live: Live | None) -> str:
    """Return what a run that goes on has come to."""
    if live is None:
        return ""
    cost = "" if live.microusd is None else f", {dollars(live.microusd, estimated=True)}"
    return f"run {live.run} goes on: {live.turns} turns{cost} so far"


def _none(besides: Mapping[State, int]) -> str:
    """Return what is said in place of an empty table."""
    if not besides:
        return "no tickets"
    which = "that are open" if OPEN.isdisjoint(besides) else "of that time"
    counts = ", ".join(f"{count} {state}" for state, count in besides.items())
    return f"no tickets {which}; {counts}: `ticket-runner status --done` shows all"


def _counted_files(count: int) -> str:
    return "1 file waits" if count == 1 else f"{count} files wait"


def _spent(sums: Sums) -> str:
    return dollars(sums.cost_microusd, estimated=sums.estimated or sums.unknown, cut=sums.cut)


def _counted(sums: Sums) -> str:
    kinds = [f"{count} {name}" for count, name in ((sums.resumed, "resumed"), (sums.fallbacks, _FRESH)) if count]
    return f"{sums.runs} ({', '.join(kinds)})" if kinds else str(sums.runs)


def _runs(runs: Iterable[RunRow], console: Console) -> Table:
    names = ("run", "kind", "session", "started", "outcome", "turns", "cost", "given", "carried", "cli")
    table = plain(names, console, leave_out={"session", "given", "carried", "cli"})
    for run in runs:
        cost = run.cost or Cost(0, CostKind.UNKNOWN)
        estimated = cost.kind is not CostKind.MEASURED
        cells = {
            "run": f"  {run.id}",
            "kind": _FRESH if run.kind is Kind.FALLBACK else run.kind,
            "session": run.session[:8],
            "started": clock(run.started_at_us),
            "outcome": run.outcome or "running",
            "turns": str(run.turns),
            "cost": "" if run.cost is None else dollars(cost.microusd, estimated=estimated, cut=cost.cut),
            "given": dollars(run.allowance_microusd),
            "carried": dollars(run.carried_microusd),
            "cli": run.cli_version or "",
        }
        table.add_row(*(shown(cells[str(column.header)]) for column in table.columns))
    return table


def _answer(question: Question) -> str:
    if question.answer is not None:
        return f"{question.answer} (by {question.answered_by})"
    if question.deadline_us is None:
        return "(no answer yet)"
    return f"(no answer yet; at {clock(question.deadline_us)} the default is taken: {question.default_answer})"


def _told(event: Event) -> str:
    ids = " ".join(part for part in (event.ticket, event.run or "") if part)
    payload = " ".join(f"{key}={value}" for key, value in event.payload.items() if value is not None and value != "")
    return " ".join(f"{clock(event.at_us)}  {event.name:<22} {ids}  {payload}".rstrip().splitlines())
