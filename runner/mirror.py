"""Keep the source showing what became of tickets.

What is wanted there follows from the ticket's state alone, so it is made so whenever it
may differ, as often as it takes; doing it twice is harmless.

Knows the store and the source. Does not know who changed a ticket.
"""

from anyio.to_thread import run_sync

from runner import log
from runner.store import Store, StoreUnavailable, tickets
from tickets.source import Source

_TRIES = 2
"""So many failures are waited for; a ticket that goes on failing is still tried, but nobody waits for it."""


class Mirror:
    """The tickets that the source may show otherwise than they are."""

    def __init__(self, store: Store, source: Source) -> None:
        self._store, self._source = store, source
        self._failures: dict[str, int] = {}
        """Of each ticket that is to be looked at, since it changed."""

    def changed(self, *ids: str) -> None:
        """Look at these tickets at the next `converge`."""
        self._failures.update(dict.fromkeys(ids, 0))

    @property
    def is_behind(self) -> bool:
        """Something is to be looked at that has not failed twice."""
        return any(failures < _TRIES for failures in self._failures.values())

    async def converge(self) -> None:
        """Make the source show the tickets that changed; what does not work now is said once, and tried the next time.

        Raises:
            StoreUnavailable: The database does not answer; what is to be looked at stays so.
        """
        if not self._failures:
            return
        before, self._failures = self._failures, {}
        try:
            states = await self._store.write(tickets.states, before)
        except StoreUnavailable:
            self._failures = before | self._failures
            raise
        for ticket, state in states.items():
            try:
                await run_sync(self._source.mirror, ticket, state)
            except OSError as error:
                if not before[ticket]:
                    log.warn("source.not_mirrored", ticket=ticket, state=state, error=str(error))
                self._failures.setdefault(ticket, before[ticket] + 1)
