"""Session ids, and which session the next run uses.

An id is known and saved before its process exists, and found again when the
database is lost. Pure: the caller reads the transcripts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID, uuid5

NAMESPACE = UUID("5b6f3a0e-6c1d-5f2a-9d57-0e0a4b8c7d21")
"""Of every session id of this program. Changing it orphans every stored session."""

EMPTY_TO_FRESH = 2
"""Runs in a row in which the model said nothing, though nothing kept it from speaking,
after which a session is given up so that its ticket is not stuck."""


class Transcript(StrEnum):
    """What the CLI can do with a session's file."""

    MISSING = "missing"
    USABLE = "usable"
    UNUSABLE = "unusable"
    """Empty, metadata only or a torn first line: `resume` finds no conversation in
    it and `session_id` is "already in use"."""


class Kind(StrEnum):
    """How a run came to be."""

    FIRST = "first"
    RESUMED = "resumed"
    FALLBACK = "fallback"
    """A new session after an earlier one, which says why it was closed: it could not go on, or was to be left."""
    FIX = "fix"
    """The same session again, within one claim, with the output of a failed check."""


@dataclass(frozen=True, slots=True)
class Session:
    """A ticket's latest conversation, as stored."""

    id: str
    generation: int
    confirmed: bool
    """A real assistant message was seen in it."""
    closed: str | None = None
    """Why it cannot go on."""
    rules: str = ""
    """Hash of the rules that it was opened with: the CLI keeps to those."""
    empty: int = 0
    """Its latest runs in a row in which the model said nothing, though nothing kept it from speaking."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next run does."""

    kind: Kind
    id: str
    generation: int
    resume: bool
    """Ask the CLI to resume; otherwise give it the id to use."""
    close: str | None = None
    """Why the session before is closed now, None when it is not."""


def session_id(source: str, ticket: str, generation: int) -> str:
    """Return the id of a ticket's session number `generation`, from 1."""
    return str(uuid5(NAMESPACE, f"{source}/{ticket}/{generation}"))


def choose(
    last: Session | None,
    *,
    name: Callable[[int], str],
    transcript: Callable[[int], Transcript],
    fresh: bool = False,
    rules: str | None = None,
) -> Plan:
    """Return which session the next run of a ticket uses.

    Args:
        last: The stored session with the highest generation.
        name: The id of a generation.
        transcript: What is on disk for a generation.
        fresh: A person asked for a new session.
        rules: Hash of the rules that a session must have been opened with; None when any will do.
    """
    if last is None:
        return _choose_without_record(name, transcript, fresh=fresh)
    why = last.closed or _reason_to_leave(last, transcript(last.generation), fresh=fresh, rules=rules)
    if why is not None:
        return _next_generation(last.generation, name, transcript, close=None if last.closed else why)
    if transcript(last.generation) is Transcript.MISSING and not last.confirmed:
        return Plan(_kind_of_new(last.generation), last.id, last.generation, resume=False)
    return Plan(Kind.RESUMED, last.id, last.generation, resume=True)


def after_failed_resume(last: Session, *, name: Callable[[int], str], transcript: Callable[[int], Transcript]) -> Plan:
    """Return the fresh session that follows a resume which found no conversation."""
    return _next_generation(last.generation, name, transcript, close="resume_failed")


def _reason_to_leave(last: Session, transcript: Transcript, *, fresh: bool, rules: str | None) -> str | None:
    if fresh:
        return "operator"
    if transcript is Transcript.UNUSABLE:
        return "transcript_unusable"
    if last.empty >= EMPTY_TO_FRESH:
        return "no_turns"
    has_rules = last.confirmed or transcript is Transcript.USABLE  # else nobody has been told them yet
    if has_rules and rules not in {None, last.rules}:
        return "rules_changed"
    return None


def _choose_without_record(name: Callable[[int], str], transcript: Callable[[int], Transcript], *, fresh: bool) -> Plan:
    generation = 0
    while transcript(generation + 1) is not Transcript.MISSING:
        generation += 1
    if generation and transcript(generation) is Transcript.USABLE and not fresh:
        return Plan(Kind.RESUMED, name(generation), generation, resume=True)
    return Plan(_kind_of_new(generation + 1), name(generation + 1), generation + 1, resume=False)


def _next_generation(
    generation: int, name: Callable[[int], str], transcript: Callable[[int], Transcript], *, close: str | None
) -> Plan:
    generation += 1
    while transcript(generation) is not Transcript.MISSING:
        generation += 1
    return Plan(Kind.FALLBACK, name(generation), generation, resume=False, close=close)


def _kind_of_new(generation: int) -> Kind:
    return Kind.FIRST if generation == 1 else Kind.FALLBACK
