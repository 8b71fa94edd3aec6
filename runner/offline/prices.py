"""What Claude Code takes a response to cost, by model family.

Integer nano-dollars per token, so that no float enters a sum.

Source: the totals that Claude Code 2.1.332 reports, found by serving it one response per model.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """Nano-dollars per token."""

    input: int
    output: int
    cache_write: int
    cache_read: int


_SONNET = Price(input=3_000, output=15_000, cache_write=3_750, cache_read=300)
_PRICES = {
    "claude-sonnet-4": _SONNET,
    "claude-opus-4-5": Price(input=5_000, output=25_000, cache_write=6_250, cache_read=500),
    "claude-haiku-4-5": Price(input=1_000, output=5_000, cache_write=1_250, cache_read=100),
}


def cost_microusd(
    model: str, *, input_tokens: int, output_tokens: int, cache_read_tokens: int = 0, cache_write_tokens: int = 0
) -> int:
    """Return the price of one response; a model that is not in the table costs like Sonnet."""
    price = next((price for family, price in _PRICES.items() if model.startswith(family)), _SONNET)
    nanousd = (
        input_tokens * price.input
        + output_tokens * price.output
        + cache_read_tokens * price.cache_read
        + cache_write_tokens * price.cache_write
    )
    return (nanousd + 500) // 1_000
