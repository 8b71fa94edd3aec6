"""How much is used of each cap that is configured.

Knows runs and the configuration. Does not know what follows when a cap is reached.
"""

from runner.budget import Cap, Scarce, Use, scarce
from runner.config import Config
from runner.days import day_start_us
from runner.store import Rx, runs, tickets


def uses(rx: Rx, ticket: str, config: Config) -> list[Use]:
    """Return how much is used of each cap that a ticket has to keep."""
    limits, used, row = config.limits, runs.used(rx, ticket), tickets.get(rx, ticket)
    of_ticket = [
        (Cap.TICKET_USD, row.spec.budget_microusd or limits.ticket_microusd, used.cost_microusd),
        (Cap.TICKET_TURNS, limits.ticket_turns, used.turns),
        (Cap.TICKET_TOKENS, limits.ticket_tokens, used.tokens),
        (Cap.TICKET_ACTIVE_S, limits.ticket_active_us, used.active_us),
    ]
    return [*(Use(cap, limit, amount) for cap, limit, amount in of_ticket if limit is not None), *shared(rx, config)]


def shared(rx: Rx, config: Config) -> list[Use]:
    """Return how much is used of each cap that all tickets have together."""
    limits, day_start = config.limits, day_start_us(rx.now_us, config.zone)
    of_all = [
        (Cap.QUEUE_USD, limits.queue_microusd, runs.queue_money(rx)),
        (Cap.DAY_USD, limits.day_microusd, runs.day_money(rx, day_start)),
    ]
    return [Use(cap, limit, *money) for cap, limit, money in of_all if limit is not None]


def shortage(rx: Rx, config: Config) -> Scarce | None:
    """Return the cap of all tickets that lets none of them start a run, None when there is none."""
    return scarce(shared(rx, config))
