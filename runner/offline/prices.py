"""What Claude Code takes a response to cost, by model family.

Integer nano-dollars per token, so that no float enters a sum.

Source: the totals that Claude Code 2.1.332 reports, found by serving it one response per model and
kind of token (100,000 each). Longer prompts and one-hour cache writes may have other prices there.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """Nano-dollars per token."""

    input: int
    output: int
    cache_write: int
    cache_read: int


_UNKNOWN = Price(4_000, 20_000, 5_000, 200)
_PRICES = {
    "claude-opus-4": Price(5_000, 25_000, 6_250, 500),
    "claude-opus-5": Price(5_000, 25_000, 6_250, 500),
    "claude-opus-5-5": Price(4_000, 20_000, 5_000, 200),
    "claude-sonnet-4": Price(3_000, 15_000, 3_750, 300),
    "claude-sonnet-5": Price(2_000, 10_000, 2_500, 200),
    "claude-sonnet-5-5": Price(2_000, 10_000, 2_500, 100),
    "claude-haiku-4-5": Price(1_000, 5_000, 1_250, 100),
    "claude-haiku-5-5": Price(100, 500, 125, 10),
    "claude-fable-5": Price(10_000, 50_000, 12_500, 1_000),
    "claude-fable-5-1": Price(10_000, 50_000, 12_500, 250),
    "claude-fable-5-2": Price(8_000, 40_000, 10_000, 200),
    "claude-mythos-5": Price(10_000, 50_000, 12_500, 1_000),
    "claude-mythos-5-1": Price(10_000, 50_000, 12_500, 250),
    "claude-mythos-5-2": Price(8_000, 40_000, 10_000, 200),
}


def cost_microusd(
    model: str, *, input_tokens: int, output_tokens: int, cache_read_tokens: int = 0, cache_write_tokens: int = 0
) -> int:
    """Return the price of one response; a model that is not in the table costs what Claude Code assumes for it."""
    family = max((family for family in _PRICES if model.startswith(family)), key=len, default="")
    price = _PRICES.get(family, _UNKNOWN)
    nanousd = (
        input_tokens * price.input
        + output_tokens * price.output
        + cache_read_tokens * price.cache_read
        + cache_write_tokens * price.cache_write
    )
    return (nanousd + 500) // 1_000
