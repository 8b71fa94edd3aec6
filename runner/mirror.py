"""Keep the source showing what became of tickets.

What is wanted there follows from the ticket's state alone, so it is made so whenever it
may differ, as often as it takes; doing it twice is harmless.

Knows the store and the source. Does not know who changed a ticket.
"""

from anyio.to_thread import run_sync

from runner import log
from runner.store import Store, tickets
from tickets.source import Source


class Mirror:
    """The tickets that the source may show otherwise than they are."""

    def __init__(self, store: Store, source: Source) -> None:
        self._store, self._source = store, source
        self._pending: set[str] = set()

    def changed(self, *ids: str) -> None:
        """Look at these tickets at the next `converge`."""
        self._pending.update(ids)

    @property
    def is_behind(self) -> bool:
        """Something is to be looked at."""
        return bool(self._pending)

    async def converge(self) -> None:
        """Make the source show the tickets that changed; what does not work now is tried the next time."""
        ids, self._pending = self._pending, set()
        for ticket, state in (await self._store.write(tickets.states, ids)).items() if ids else ():
            try:
                await run_sync(self._source.mirror, ticket, state)
            except OSError as error:
                log.warn("source.not_mirrored", ticket=ticket, state=state, error=str(error))
                self._pending.add(ticket)
