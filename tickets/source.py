"""Where tickets come from and where what became of them is shown.

A source never decides: it hands over what it found and mirrors what it is told.
Its calls do file or network I/O and may block; the caller keeps them off its loop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tickets.ticket import Spec, State


@dataclass(frozen=True, slots=True)
class Refused:
    """Something in the source that cannot become a ticket until it changes."""

    where: str
    """File, and line where there is one: `fix.md:3`."""
    problem: str
    """What is wrong and what to do, for a person."""
    fingerprint: str
    """Changes when the thing changes, so that it is told once and taken again then."""


@dataclass(frozen=True, slots=True)
class Intake:
    """What one look at the source found."""

    found: tuple[Spec, ...] = ()
    refused: tuple[Refused, ...] = ()
    ripens_in_s: float | None = None
    """Something is still being written: look again after so many seconds."""


Known = Callable[[str], str | None]
"""The known ticket with the same canonical id as the argument, or None."""


class Source(Protocol):
    """A place that tickets come from."""

    name: str

    def take(self, known: Known) -> Intake:
        """Return what is new; leave everything where it is."""

    def mirror(self, ticket_id: str, state: State) -> None:
        """Make the source show `state`; doing it twice is harmless."""

    def comment(self, key: str, ticket_id: str, body: str) -> str:
        """Publish `body` under the idempotency key `key`; return where it is."""

    def look_up(self, key: str, ticket_id: str) -> str | None:
        """Return where the comment with `key` is, None when it is provably not there."""
