"""Allowances and the ledger's arithmetic.

Every amount is integer micro-dollars. The CLI's own limit counts one process, so
it is given what is left of the caps, less a reserve for the response that crosses
it: that response completes and counts.

Pure. Does not know where the figures come from.
"""

from dataclasses import dataclass
from enum import StrEnum

RESERVE_MICROUSD = 50_000
"""Kept back for the response that crosses the limit: about 3,000 output tokens of a
$15 per million model. At most `RESERVE_SHARE` of what is left, so that small caps work."""
RESERVE_SHARE = 10
FLOOR_MICROUSD = 10_000
"""Below this a run is not worth its start: the first response of 1,000 tokens in and
500 out costs 10,500 (and `max_budget_usd=0` looks like a failed resume)."""


class CostKind(StrEnum):
    """How well a run's cost is known."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run cost."""

    microusd: int
    kind: CostKind
    cut: bool = False
    """A response was in flight when the process died: its price is in no total."""


class Scarce(StrEnum):
    """Which cap leaves too little to start with."""

    TICKET = "ticket"
    DAY = "day"
    DAY_RESERVED = "day_reserved"
    """The day's cap is not spent: running tickets may spend it, or give it back."""


def allowance(
    *, ticket_cap: int, ticket_spent: int, day_cap: int | None, day_spent: int, day_reserved: int
) -> int | Scarce:
    """Return what a run may spend in micro-dollars, or which cap is too low to start it.

    Args:
        ticket_cap: Of the ticket, over all its runs.
        ticket_spent: By all the ticket's runs.
        day_cap: Of all tickets in a UTC day; None for no cap.
        day_spent: By all runs that began today and have ended.
        day_reserved: Given to runs that have not ended.
    """
    of_ticket = _less_reserve(ticket_cap - ticket_spent)
    if of_ticket < FLOOR_MICROUSD:
        return Scarce.TICKET
    if day_cap is None:
        return of_ticket
    of_day = _less_reserve(day_cap - day_spent - day_reserved)
    if of_day < FLOOR_MICROUSD:
        return Scarce.DAY if _less_reserve(day_cap - day_spent) < FLOOR_MICROUSD else Scarce.DAY_RESERVED
    return min(of_ticket, of_day)


def run_cost(
    *,
    carried: int,
    total: int | None,
    last_total: int | None,
    priced: int | None,
    cut: bool,
) -> Cost:
    """Return what one run cost, from the best reading that there is.

    Args:
        carried: The total that the session's transcript held before the run.
        total: `total_cost_usd` of the run's result.
        last_total: The transcript's total after the run, when it was written during the run.
        priced: The usage of the run's own messages at list price; None when a model has no known price.
        cut: A response was in flight when the process died.
    """
    for reading in (total, last_total):
        if reading is not None:
            return Cost(max(reading - carried, 0), CostKind.MEASURED, cut)
    if priced is None:
        return Cost(0, CostKind.UNKNOWN, cut)
    return Cost(priced, CostKind.ESTIMATED if priced or cut else CostKind.MEASURED, cut)


def _less_reserve(left: int) -> int:
    return left - min(RESERVE_MICROUSD, max(left, 0) // RESERVE_SHARE)
