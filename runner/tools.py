"""The agent's tools of ours: comment, ask, and one per configured effect.

They run in our process and ask the ledger; the agent has no credential of what an
effect touches. What a tool answers is what the ledger knows, so asking again returns
the first outcome.

Knows the ledger and the questions. Does not know how an effect is performed.
"""

import re
from collections.abc import Mapping
from functools import partial

from runner.agent import Answer, Tool
from runner.config import Config, Effect
from runner.effects import Ledger, wish_of
from runner.events import Value
from runner.redact import Redactor
from runner.store import Store, questions
from runner.store.effects import EffectRow, EffectState, TooManyEffects, Verdict
from runner.store.questions import Question
from runner.store.tickets import Row
from runner.why import clock

_OPERATION = {
    "type": "string",
    "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    "description": "A name of your choice for this one effect, the same each time you ask for the same thing.",
}
_TEXT_CHARS = 64 * 1024
_DEFAULT = {
    "type": "object",
    "description": "What you will go by if nobody answers in time. Leave it out where only a person may decide.",
    "properties": {
        "answer": {"type": "string", "minLength": 1, "maxLength": _TEXT_CHARS},
        "deadline_minutes": {
            "type": "integer",
            "minimum": 1,
            "maximum": 525_600,
            "description": "How long to wait for a person. Default: as the people behind the ticket have set it.",
        },
    },
    "required": ["answer"],
    "additionalProperties": False,
}
"""A deadline is part of a default, so that there is none without."""


def tools_of(
    run: str, *, config: Config, store: Store, ledger: Ledger, row: Row, redactor: Redactor
) -> tuple[Tool, ...]:
    """Return the tools of one run.

    Args:
        run: The run's id.
        config: For the configured effects.
        store: For the questions.
        ledger: For the effects.
        row: The ticket as claimed.
        redactor: Keeps known secrets out of what is published.
    """
    desk = _Desk(run, store, ledger, row, redactor, config.limits.question_deadline_s)
    comment = Tool(
        "comment",
        "Publish a comment on the ticket. Asked twice for one operation, it is published once.",
        _schema({"operation": _OPERATION, "body": {"type": "string", "minLength": 1, "maxLength": _TEXT_CHARS}}),
        desk.comment,
    )
    ask = Tool(
        "ask",
        "Ask the people behind the ticket what you cannot find out or decide yourself. Your run ends with it and goes "
        "on in this conversation when there is an answer: ask everything at once.",
        _schema(
            {"question": {"type": "string", "minLength": 1, "maxLength": _TEXT_CHARS}, "default": _DEFAULT},
            frozenset({"default"}),
        ),
        desk.ask,
    )
    configured = (
        Tool(name, effect.description, _schema_of(effect), partial(desk.effect, name, effect))
        for name, effect in config.effects.items()
    )
    return (comment, ask, *configured)


class _Desk:
    """Takes a run's wishes."""

    def __init__(
        self, run: str, store: Store, ledger: Ledger, row: Row, redactor: Redactor, deadline_s: float | None
    ) -> None:
        self._run, self._store, self._ledger, self._row, self._redactor = run, store, ledger, row, redactor
        self._deadline_s = deadline_s

    async def comment(self, arguments: Mapping[str, object]) -> Answer:
        body = self._redactor.text(str(arguments["body"]))
        return await self._request("comment", str(arguments["operation"]), {"body": body})

    async def effect(self, name: str, effect: Effect, arguments: Mapping[str, object]) -> Answer:
        operation = str(arguments.get("operation", name))
        payload: dict[str, Value] = {key: self._redactor.text(str(arguments[key])) for key in effect.input}
        return await self._request(name, operation, payload, needs_approval=effect.approval)

    async def ask(self, arguments: Mapping[str, object]) -> Answer:
        text, default = self._redactor.text(str(arguments["question"])), None
        deadlines_s = [] if self._deadline_s is None else [self._deadline_s]
        if isinstance(given := arguments.get("default"), Mapping):
            default = self._redactor.text(str(given["answer"]))
            deadlines_s += [minutes * 60.0] if isinstance(minutes := given.get("deadline_minutes"), int) else []
        ticket, deadline_s = self._row.ticket, min(deadlines_s, default=None)
        deadline_us = await self._store.write(
            questions.ask, ticket.id, ticket.token, text, run=self._run, default=default, deadline_s=deadline_s
        )
        or_then = "" if deadline_us is None else f", at {clock(deadline_us)} with your default"
        saved = f"Your question is saved. You go on in this conversation when it is answered{or_then}."
        return Answer(saved, end_run=True)

    async def _request(
        self, kind: str, operation: str, payload: Mapping[str, Value], *, needs_approval: bool = False
    ) -> Answer:
        named = kind if operation == kind else f"{kind}.{operation}"
        wish = wish_of(self._row, named, kind, payload, needs_approval=needs_approval, run=self._run)
        try:
            row, verdict = await self._ledger.request(wish, token=self._row.ticket.token)
        except TooManyEffects as error:
            return Answer(str(error), is_error=True)
        return tell(row, verdict)


def tell(row: EffectRow, verdict: Verdict) -> Answer:
    """Return what the agent is told of an effect that it asked for."""
    outcome = f": {row.outcome}" if row.outcome else ""
    if verdict is Verdict.CONFLICT:
        return Answer(
            f"Refused: `{row.operation}` was asked for before with other content, and is {row.state}{outcome}. "
            "For another effect choose another operation name.",
            is_error=True,
        )
    if row.waits_for_approval:
        return Answer("A person has to approve this. You go on in this conversation when it is decided.", end_run=True)
    if row.is_unknown:
        return Answer(f"Whether this happened is not known{outcome}. A person will find out.", end_run=True)
    match row.state:
        case EffectState.DONE if verdict is not Verdict.NEW:
            return Answer(f"Done before, and not repeated{outcome}")
        case EffectState.DONE:
            return Answer(f"Done{outcome}")
        case EffectState.FAILED if row.is_given_up:
            return Answer(
                f"This did not happen in {row.attempts} tries, and is not tried again{outcome}", is_error=True
            )
        case EffectState.FAILED:
            return Answer(f"This did not happen{outcome}", is_error=True)
        case EffectState.ABANDONED:
            return Answer("A person decided to go on without this. Do not ask for it again.")
        case _:
            return Answer(f"This is {row.state}; its outcome will be told to you later.")


def summary(row: EffectRow) -> str:
    """Return an effect and its outcome in one line, for the agent and for people."""
    state = "outcome unknown" if row.is_unknown else "waits for approval" if row.waits_for_approval else str(row.state)
    outcome = re.sub(r"\s+", " ", row.outcome or "")[:300]
    return f"{row.operation}: {state}{f' ({outcome})' if outcome else ''}"


def asked(question: Question) -> str:
    """Return an open question as a person is told of it."""
    if question.default_answer is None:
        return question.text
    default = re.sub(r"\s+", " ", question.default_answer)[:300]
    until = "" if question.deadline_us is None else f", taken at {clock(question.deadline_us)}"
    return f"(default answer{until}: {default}) {question.text}"


def _schema(properties: Mapping[str, object], optional: frozenset[str] = frozenset()) -> dict[str, object]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def _schema_of(effect: Effect) -> dict[str, object]:
    inputs = {
        name: {"type": "string", "maxLength": _TEXT_CHARS, "description": text} for name, text in effect.input.items()
    }
    return _schema({"operation": _OPERATION, **inputs}, frozenset({"operation"}))
