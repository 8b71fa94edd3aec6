"""Caps, allowances and the ledger's arithmetic.

Money is integer micro-dollars. The CLI's own limit counts one process, so it is given
what is left of the caps, less a reserve for the response that crosses it: that
response completes and counts. Turns, tokens and active time are caps of the same kind,
without a reserve.

Pure. Does not know where the figures come from.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

RESERVE_MICROUSD = 50_000
"""Kept back for the response that crosses the limit: about 3,000 output tokens of a
$15 per million model. At most `RESERVE_SHARE` of what is left, so that small caps work."""
RESERVE_SHARE = 10
FLOOR_MICROUSD = 10_000
"""Below this a run is not worth its start: the first response of 1,000 tokens in and
500 out costs 10,500 (and `max_budget_usd=0` looks like a failed resume)."""
FLOOR_ACTIVE_US = 1_000_000
"""The same of time: Claude Code takes 0.6 s to start."""
WARN_PERCENT = 80
"""Of a cap, at which a person is told."""


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
    """A response was, or may have been, in flight when the process died: its price is in no total."""


class Cap(StrEnum):
    """A limit of what may be used, by the key that raises it."""

    TICKET_USD = "limits.ticket_usd"
    TICKET_TURNS = "limits.ticket_turns"
    TICKET_TOKENS = "limits.ticket_tokens"
    TICKET_ACTIVE_S = "limits.ticket_active_s"
    QUEUE_USD = "limits.queue_usd"
    DAY_USD = "limits.day_usd"

    @property
    def is_of_ticket(self) -> bool:
        """Return whether it is about one ticket, over all its runs; else about all of them together."""
        return self not in {Cap.QUEUE_USD, Cap.DAY_USD}


_UNITS: Mapping[Cap, str] = {
    Cap.TICKET_USD: "microusd",
    Cap.TICKET_TURNS: "turns",
    Cap.TICKET_TOKENS: "tokens",
    Cap.TICKET_ACTIVE_S: "active_us",
    Cap.QUEUE_USD: "microusd",
    Cap.DAY_USD: "microusd",
}
_MONEY = frozenset(cap for cap, unit in _UNITS.items() if unit == "microusd")
_FLOORS = {"microusd": FLOOR_MICROUSD, "turns": 1, "tokens": 1, "active_us": FLOOR_ACTIVE_US}


@dataclass(frozen=True, slots=True)
class Use:
    """How much of a cap is used: in micro-dollars, turns, tokens or microseconds."""

    cap: Cap
    limit: int
    used: int
    reserved: int = 0
    """Given to runs that have not ended, which may use it or give it back."""

    @property
    def unit(self) -> str:
        """What is counted: `microusd`, `turns`, `tokens` or `active_us`."""
        return _UNITS[self.cap]


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a run may use; None for no limit."""

    microusd: int
    by: Cap
    """Which cap bounds the money."""
    turns: int | None = None
    tokens: int | None = None
    active_us: int | None = None


@dataclass(frozen=True, slots=True)
class Scarce:
    """A cap that leaves too little to start with."""

    use: Use
    is_reserved: bool = False
    """It is not used up: there would be enough if running tickets gave back what they have."""


def allowance(uses: Collection[Use]) -> Allowance | Scarce:
    """Return what a run may use, or which cap leaves too little to start it.

    Args:
        uses: Of every cap that there is, the ticket's own money among them.
    """
    if (short := scarce(uses)) is not None:
        return short
    left = {use.cap: _left(use) for use in uses}
    by = min((cap for cap in left if cap in _MONEY), key=left.__getitem__)
    return Allowance(
        left[by], by, left.get(Cap.TICKET_TURNS), left.get(Cap.TICKET_TOKENS), left.get(Cap.TICKET_ACTIVE_S)
    )


def scarce(uses: Collection[Use]) -> Scarce | None:
    """Return the cap that leaves too little, None when all leave enough.

    A cap of the ticket is named before one of all tickets, and one that is used up before one that is reserved.
    """
    short = [Scarce(use, is_reserved=_enough(replace(use, reserved=0))) for use in uses if not _enough(use)]
    return min(short, key=lambda it: (not it.use.cap.is_of_ticket, it.is_reserved), default=None)


def is_near(use: Use) -> bool:
    """Return whether so much of a cap is used that a person may want to know."""
    return use.used * 100 >= use.limit * WARN_PERCENT


def told(use: Use) -> str:
    """Return for a person what is used of which cap."""
    match use.unit:
        case "microusd":
            return f"{use.cap}: ${use.used / 1e6:.4f} of ${use.limit / 1e6:.4f} spent"
        case "active_us":
            return f"{use.cap}: {use.used / 1e6:,.0f} of {use.limit / 1e6:,.0f} s used"
        case unit:
            return f"{use.cap}: {use.used:,} of {use.limit:,} {unit} used"


def remedy(scarce: Scarce) -> str:
    """Return for a person what lets a ticket go on that has met a cap."""
    cap = scarce.use.cap
    if scarce.is_reserved:
        return "running tickets have the rest, and may give it back"
    if cap is Cap.DAY_USD:
        return f"it goes on the next day, or after a restart with a higher {cap}"
    if cap is Cap.QUEUE_USD:
        return f"it goes on after a restart with a higher {cap}"
    if cap is Cap.TICKET_USD:
        return "`release --budget-usd` gives it more"
    return f"raise {cap}, restart and `release`"


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
        cut: A response was, or may have been, in flight when the process died.
    """
    for reading in (total, last_total):
        if reading is not None:
            return Cost(max(reading - carried, 0), CostKind.MEASURED, cut)
    if priced is None:
        return Cost(0, CostKind.UNKNOWN, cut)
    return Cost(priced, CostKind.ESTIMATED if priced or cut else CostKind.MEASURED, cut)


def _left(use: Use) -> int:
    left = use.limit - use.used - use.reserved
    return left - min(RESERVE_MICROUSD, max(left, 0) // RESERVE_SHARE) if use.cap in _MONEY else left


def _enough(use: Use) -> bool:
    return _left(use) >= _FLOORS[use.unit]
