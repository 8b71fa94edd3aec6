"""Strategies that draw facts, and the lives that tickets can have.

A life is drawn fact by fact, and what is illegal in it is left out, so that every
ticket of `lives` is one that a log could hold.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import get_args, get_type_hints

from hypothesis import strategies as st

from tickets.moves import IllegalMove, advance
from tickets.ticket import Claimed, Fact, Finished, FreshUsed, Held, Orphaned, PutBack, Stopped, Ticket

TIMES_US = st.integers(0, 253_402_300_799_000_000)
"""To the end of the year 9999, which a ticket's file can name."""
KINDS: tuple[type[Fact], ...] = get_args(Fact)


def facts(tokens: st.SearchStrategy[int], kinds: Sequence[type[Fact]] = KINDS) -> st.SearchStrategy[Fact]:
    """Return a strategy of every one of `kinds`, reported with one of `tokens`."""
    return st.one_of([_of_kind(kind, tokens) for kind in kinds])


def any_tickets() -> st.SearchStrategy[Ticket]:
    """Return a strategy of tickets in every combination of values, also of those that no log leads to."""
    hints = get_type_hints(Ticket)
    return st.builds(
        Ticket,
        **{f.name: st.from_type(hints[f.name]) for f in fields(Ticket)}
        | {name: st.integers(0, 4) for name in ("token", "attempts", "waits", "crashes", "round")},
    )


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[Fact], Ticket]:
    """Draw the facts of a ticket's life so far, and the ticket."""
    life: list[Fact] = []
    ticket = Ticket("t")
    for drawn in draw(st.lists(_FACTS, max_size=40)):
        fact = with_token(drawn, ticket.token + isinstance(drawn, Claimed))
        try:
            ticket = advance(ticket, fact)
        except IllegalMove:
            continue
        life.append(fact)
    return life, ticket


def claimed(ticket: Ticket) -> Ticket:
    """Return `ticket` as its next claim has it."""
    return advance(ticket, Claimed(ticket.token + 1))


def with_token(fact: Fact, token: int) -> Fact:
    """Return `fact` as the claim with `token` reports it."""
    if isinstance(fact, Claimed | Orphaned | PutBack | Held | Finished | FreshUsed | Stopped):
        return replace(fact, token=token)
    return fact


def _of_kind(kind: type[Fact], tokens: st.SearchStrategy[int]) -> st.SearchStrategy[Fact]:
    values = {name: st.from_type(hint) for name, hint in get_type_hints(kind).items()}
    values |= {"not_before_us": TIMES_US} if "not_before_us" in values else {}
    return st.builds(kind, **values | ({"token": tokens} if "token" in values else {}))


_FACTS = facts(st.just(0))
