"""What a run uses while it goes on: a person is told of a cap that comes near, and tokens and turns end at theirs.

Money is priced by usage here, which is close; what a run did cost is known at its end. So are the tokens that
subagents put out.

Knows the caps of the run's ticket. Does not know how a run is stopped.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import anyio
from anyio.to_thread import run_sync

from runner import accounts
from runner.agent import Used
from runner.budget import WARN_PERCENT, Allowance, Cap, Use, is_near
from runner.config import Config
from runner.outcome import StoppedBy
from runner.store import Store
from runner.store.runs import RunRow
from runner.transcript import Usage, price

_MOST_MICROUSD = 200
"""More than any token costs (the dearest of genai-prices: $150 per million). While a run cannot have come near its cap
even so, nothing is priced: that takes a library of 27 MB."""


class Meter:
    """Counts what one run uses."""

    def __init__(self, store: Store, config: Config, run: RunRow, uses: Collection[Use], given: Allowance) -> None:
        self._store, self._config, self._run, self._given = store, config, run, given
        self._far = [use for use in uses if use.cap.is_of_ticket and not is_near(use)]
        self._used: Counter[str] = Counter()
        self._unpriced: list[Usage] = []
        self._model = ""
        self._asides: set[str] = set()
        self._began = anyio.current_time()

    async def count(self, used: Used) -> StoppedBy | None:
        """Count a request or its response; say so when the run ends with it, as tokens and turns do."""
        if used.aside not in self._asides:
            await self._add(used)
        return self._over() if used.ends and used.calls_tools else None

    async def _add(self, used: Used) -> None:
        model = used.model or self._model
        usage = Usage("", model, used.input, used.output, used.cache_read, used.cache_write_5m, used.cache_write_1h)
        self._unpriced.append(usage)
        self._used["tokens"] += usage.tokens
        if used.aside:
            self._asides.add(used.aside)
        else:
            self._model = model
        if used.ends:
            self._used["turns"] += 1
            self._used["active_us"] = round((anyio.current_time() - self._began) * 1e6)
            await self._warn()

    def _over(self) -> StoppedBy | None:
        given, used = self._given, self._used
        if given.tokens is not None and used["tokens"] >= given.tokens:
            return StoppedBy.TOKENS
        if self._asides and given.turns is not None and used["turns"] >= given.turns:
            return StoppedBy.TURNS  # without subagents Claude Code ends it, which lets the last tools run
        return None

    async def _warn(self) -> None:
        for use in [*self._far]:
            if use.cap is Cap.TICKET_USD:
                await self._price(use.limit * WARN_PERCENT // 100 - use.used)
            now = replace(use, used=use.used + self._used[use.unit])
            if is_near(now):
                self._far.remove(use)
                await self._store.write(accounts.warn_of, now, self._run, self._config)

    async def _price(self, until_near_microusd: int) -> None:
        if self._used["tokens"] * _MOST_MICROUSD >= until_near_microusd:
            priced, self._unpriced = await run_sync(price, self._unpriced), []
            self._used["microusd"] += priced or 0  # a model without a known price is told of at the run's end
