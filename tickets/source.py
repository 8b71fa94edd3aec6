"""Where tickets come from and where what became of them is shown.

A source never decides: it hands over what it found and mirrors what it is told.
Its calls do file or network I/O and may block; the caller keeps them off its loop,
and calls `take` from one thread at a time. A source that cannot be reached raises
`OSError`: nothing is known then, and the caller tries again later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tickets.ticket import Spec, State


@dataclass(frozen=True, slots=True)
class Known:
    """A ticket that was taken in before."""

    spec: Spec
    """Exactly as it was taken in."""
    state: State


Lookup = Callable[[str], Known | None]
"""The known ticket with the same canonical id as the argument, or None."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Something in the source that cannot become a ticket until it changes."""

    where: str
    """File, and line where there is one: `fix.md:3`."""
    problem: str
    """What is wrong and what to do, for a person."""
    fingerprint: str
    """Changes when the thing or its problem changes, so that it is told once."""

    @property
    def file(self) -> str:
        """The file alone."""
        file, _, line = self.where.rpartition(":")
        return file if line.isdecimal() else self.where

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Intake:
    """What one look at the source found."""

    found: tuple[Spec, ...] = ()
    """The oldest first: those of one priority are worked on in this order."""
    refused: tuple[Refused, ...] = ()
    ripens_in_s: float | None = None
    """Something is still being written: look again after so many seconds."""


class Source(Protocol):
    """A place that tickets come from."""

    name: str

    def take(self, known: Lookup) -> Intake:
        """Return what is new; leave everything where it is.

        A ticket is found again until `known` has it. Mirror what is pending before
        the first look, or a finished ticket may be told to have been put in again.
        """

    def mirror(self, ticket_id: str, state: State) -> None:
        """Make the source show `state`; doing it twice is harmless."""

    def comment(self, key: str, ticket_id: str, body: str) -> str:
        """Publish `body` under the idempotency key `key`; return where it is."""

    def look_up(self, key: str, ticket_id: str) -> str | None:
        """Return where the comment with `key` is, None when it is provably not there."""
