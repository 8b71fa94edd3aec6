"""Two records of the same money: what the runner says was paid, and what the API served.

Pure but for the table that it makes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from runner.offline.demo.stage import Line
from runner.offline.served import Served


@dataclass(frozen=True, slots=True)
class Paid:
    """What a ticket came to in one pass, by both records."""

    ticket: str
    state: str
    runs: int
    sessions: int
    paid_microusd: int
    served_microusd: int
    paid_cut: bool
    """The runner's mark that a reply was cut off, whose price is in no total."""
    served_cut: bool
    replies: int

    @property
    def problems(self) -> list[str]:
        """What is not as it has to be."""
        found = []
        if self.state != "done":
            found.append(f"{self.ticket} is {self.state}")
        if self.paid_microusd != self.served_microusd:
            served = _dollars(self.served_microusd)
            found.append(f"{self.ticket}: paid {_dollars(self.paid_microusd)}, and the API served {served}")
        if self.paid_cut != self.served_cut:
            found.append(f"{self.ticket}: marked as cut: {self.paid_cut}, and a reply was cut: {self.served_cut}")
        return found


def paid(line: Line, scene: str, served: Iterable[Served]) -> Paid:
    """Return what a ticket came to: its row of `status`, and what was served of its scene."""
    of_ticket = [each for each in served if each.scene == scene]
    complete = [each for each in of_ticket if each.complete]
    return Paid(
        line.ticket.id,
        line.ticket.state,
        line.sums.runs,
        line.generation or 0,
        line.sums.cost_microusd,
        sum(each.cost_microusd for each in complete),
        line.sums.cut,
        len(complete) < len(of_ticket),
        len(complete),
    )


def not_as_meant(resumed: Sequence[Paid], fresh: Sequence[Paid], *, interrupted: str) -> list[str]:
    """Return in what two passes are not those that were to be compared, ticket by ticket."""
    found = []
    for left, right in zip(resumed, fresh, strict=True):
        runs, sessions = (2, 2) if left.ticket == interrupted else (1, 1)
        for each, meant in ((left, (runs, 1)), (right, (runs, sessions))):
            if (each.runs, each.sessions) != meant:
                found.append(f"{each.ticket}: {each.runs} runs, {each.sessions} sessions; meant were {meant}")
    if _paid(resumed) >= _paid(fresh):
        found.append("to resume saved nothing")
    return found


def comparison(resumed: Sequence[Paid], fresh: Sequence[Paid]) -> Table:
    """Return both passes side by side, ticket by ticket."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in ("resumed\nserved", "\npaid", "fresh session\nserved", "\npaid", "\nmore"):
        table.add_column(name, justify="right", no_wrap=True)
    for left, right in zip(resumed, fresh, strict=True):
        table.add_row(left.ticket, *_amounts([left]), *_amounts([right]), _more([left], [right]))
    table.add_row("all", *_amounts(resumed), *_amounts(fresh), _more(resumed, fresh), style="bold")
    replies = [sum(each.replies for each in tickets) for tickets in (resumed, fresh)]
    table.add_row("replies", str(replies[0]), "", str(replies[1]), "", f"+{replies[1] - replies[0]}")
    return table


def _amounts(tickets: Sequence[Paid]) -> tuple[str, str]:
    mark = "+" if any(each.paid_cut for each in tickets) else ""
    return _dollars(sum(each.served_microusd for each in tickets)), _dollars(_paid(tickets)) + mark


def _more(resumed: Iterable[Paid], fresh: Iterable[Paid]) -> str:
    more = _paid(fresh) - _paid(resumed)
    return f"+{_dollars(more)}" if more else ""


def _paid(tickets: Iterable[Paid]) -> int:
    return sum(each.paid_microusd for each in tickets)


def _dollars(microusd: int) -> str:
    return f"${microusd / 1e6:.6f}"
