"""How a run ended, and what follows.

Decided from structure (subtype, terminal reason, status, exit code, our own stop),
never from prose. `RULES` is the table that a person reads; every value of an open
set that we do not know lands in a row of it too.

Pure. Does not know processes, stores or clocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tickets.ticket import Cause, Held, PutBack, Reason, Ticket

_US = 1_000_000


class StoppedBy(StrEnum):
    """Why we stopped a run ourselves."""

    DRAIN = "drain"
    OPERATOR = "operator"
    LOST = "lost"
    """The claim's lease or token is gone."""
    START = "start"
    """No message within the start limit."""
    SILENCE = "silence"
    TOOL_SILENCE = "tool_silence"
    RUN = "run"
    """The whole run took too long."""
    LINGER = "linger"
    """The result was there and the process did not go."""
    LOOP = "loop"
    """The same call failed in the same way again and again."""
    TOKENS = "tokens"
    TURNS = "turns"
    ACTIVE = "active"
    """A cap of the ticket is reached."""


class Trouble(StrEnum):
    """What kept the CLI from speaking to us."""

    CLI_MISSING = "cli_missing"
    SPAWN_FAILED = "spawn_failed"
    PROTOCOL = "protocol"
    """A frame that is not JSON or has no known shape."""
    WRONG_SESSION = "wrong_session"
    """The CLI names another session than it was given."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Result:
    """The result frame of a run, in our units."""

    subtype: str
    is_error: bool
    terminal_reason: str | None = None
    api_error_status: int | None = None
    turns: int = 0
    total_cost_microusd: int | None = None
    """Of the session, carried cost included."""
    text: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    stop_reason: str | None = None
    """Why the model's last response ended."""

    @property
    def unfinished(self) -> str:
        """Why the model is not done with its work though a result of success says so; "" when it is."""
        if self.stop_reason in _MORE_TO_COME:
            return f"the model's last answer has more to come ({self.stop_reason})"
        return "" if self.text.strip() else "the model's last answer is empty"


@dataclass(frozen=True, slots=True)
class Ending:
    """Everything that is known of how a CLI process ended."""

    resumed: bool
    confirmed: bool = False
    """A real assistant message was seen, not a synthetic one."""
    result: Result | None = None
    api_error: str | None = None
    """`error` of the last synthetic assistant message."""
    exit_code: int | None = None
    """Negative for a signal, as subprocess has it; None when it is not known."""
    trouble: Trouble | None = None
    stopped_by: StoppedBy | None = None
    reset_at_us: int | None = None
    """When a rejected rate limit ends, if the CLI said so."""
    active_us: int | None = None
    """How long it took, without the time in which the machine or its daemon stood still; None when nobody saw that."""
    detail: str = ""
    """For a person: the exception and the end of stderr, redacted."""


class Outcome(StrEnum):
    """How a run ended."""

    FINISHED = "finished"
    ASKED = "asked"
    RESUME_FAILED = "resume_failed"
    WEATHER = "weather"
    UNAUTHORIZED = "unauthorized"
    BUDGET = "budget"
    TURNS = "turns"
    SESSION_OVER = "session_over"
    STALLED = "stalled"
    LOOPED = "looped"
    NEVER_STARTED = "never_started"
    STOPPED = "stopped"
    KILLED = "killed"
    NO_CLI = "no_cli"
    FAILED = "failed"
    UNEXPLAINED = "unexplained"
    ORPHANED = "orphaned"
    """Its daemon died before it: found by the next claim, which never saw it end."""


class Next(StrEnum):
    """What a claim does after a run."""

    CHECK = "check"
    FRESH = "fresh"
    """A new session in this claim, once; after that it counts as unexplained."""
    HOLD = "hold"
    WAIT = "wait"
    """Put back, no attempt, doubling wait."""
    WEATHER = "weather"
    """Put back, no attempt, and the whole queue waits until a ticket gets through."""
    AGAIN = "again"
    """Put back, one attempt."""
    PAUSE = "pause"
    """Put back, no attempt, and the whole queue waits for the operator."""
    LEAVE = "leave"
    """Decided elsewhere: by whoever asked to stop, or by the next claim."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table."""

    next: Next
    closes_session: bool = False
    hold: Reason | None = None


RULES: Mapping[Outcome, Rule] = {
    Outcome.FINISHED: Rule(Next.CHECK),
    Outcome.ASKED: Rule(Next.HOLD, hold=Reason.QUESTION),
    Outcome.RESUME_FAILED: Rule(Next.FRESH, closes_session=True),
    Outcome.WEATHER: Rule(Next.WEATHER),
    Outcome.UNAUTHORIZED: Rule(Next.PAUSE),
    Outcome.BUDGET: Rule(Next.HOLD, hold=Reason.BUDGET),
    Outcome.TURNS: Rule(Next.HOLD, hold=Reason.BUDGET),
    Outcome.SESSION_OVER: Rule(Next.AGAIN, closes_session=True),
    Outcome.STALLED: Rule(Next.AGAIN),
    Outcome.LOOPED: Rule(Next.HOLD, hold=Reason.LOOP),
    Outcome.NEVER_STARTED: Rule(Next.WAIT),
    Outcome.STOPPED: Rule(Next.LEAVE),
    Outcome.KILLED: Rule(Next.AGAIN),
    Outcome.NO_CLI: Rule(Next.PAUSE),
    Outcome.FAILED: Rule(Next.AGAIN),
    Outcome.UNEXPLAINED: Rule(Next.WAIT),
    Outcome.ORPHANED: Rule(Next.LEAVE),
}

_AUTHORIZATION = frozenset(
    {
        "account_on_hold",
        "authentication_failed",
        "billing_error",
        "cloud_credential_error",
        "oauth_org_not_allowed",
        "verification_required",
    }
)
_WEATHER = frozenset({"rate_limit", "overloaded", "server_error"})
_CONTEXT_FULL = frozenset({"blocking_limit", "prompt_too_long", "rapid_refill_breaker"})
_MORE_TO_COME = frozenset({"max_tokens", "model_context_window_exceeded", "pause_turn", "tool_use"})
"""Not "end_turn", nor what a gateway may say for it."""
_OUR_CLOCKS = frozenset({StoppedBy.START, StoppedBy.SILENCE, StoppedBy.TOOL_SILENCE, StoppedBy.RUN})
CLOCKS = _OUR_CLOCKS | {StoppedBy.LINGER}
"""Whatever a limit of time ended: a run, or only the process that stayed after its result."""
_CAPS = {
    StoppedBy.TOKENS: Outcome.BUDGET,
    StoppedBy.TURNS: Outcome.TURNS,
    StoppedBy.ACTIVE: Outcome.BUDGET,
}
_FAILED_STARTS_TO_HOLD = 6
"""Three times what gives up a session: two new ones failed in the same way."""


def classify(end: Ending) -> Outcome:
    """Return how a run ended. Total: whatever is unknown is FAILED or UNEXPLAINED."""
    if end.trouble in {Trouble.CLI_MISSING, Trouble.SPAWN_FAILED}:
        return Outcome.NO_CLI
    if end.result is not None and end.stopped_by in {None, StoppedBy.LINGER} and end.trouble is None:
        return _from_result(end, end.result)
    if end.stopped_by in _OUR_CLOCKS:
        return Outcome.STALLED if end.confirmed else Outcome.NEVER_STARTED
    if end.stopped_by is StoppedBy.LOOP:
        return Outcome.LOOPED
    if end.stopped_by in _CAPS:
        return _CAPS[end.stopped_by]
    if end.stopped_by is not None and end.stopped_by is not StoppedBy.LINGER:
        return Outcome.STOPPED
    if end.exit_code is not None and (end.exit_code < 0 or end.exit_code > 128):  # noqa: PLR2004  # a shell's way to say a signal
        return Outcome.KILLED if end.confirmed else Outcome.NEVER_STARTED
    return Outcome.FAILED if end.confirmed else Outcome.UNEXPLAINED


def _from_result(end: Ending, result: Result) -> Outcome:
    match result.subtype, result.is_error, result.terminal_reason:
        case "success", False, "completed" if end.confirmed and not result.unfinished:
            return Outcome.FINISHED
        case "success", False, "hook_stopped":
            return Outcome.ASKED
        case _, _, reason if reason in _CONTEXT_FULL:
            return Outcome.SESSION_OVER
        case "success", True, reason if reason != "image_error":  # a resume leaves out the image that was refused
            return _from_api_error(end, result)
        case "error_max_budget_usd", _, _:
            return Outcome.BUDGET
        case "error_max_turns", _, _:
            return Outcome.TURNS
        case "error_during_execution", _, None if end.resumed and not end.confirmed:
            return Outcome.RESUME_FAILED
        case _:
            return Outcome.FAILED if end.confirmed else Outcome.UNEXPLAINED


def _from_api_error(end: Ending, result: Result) -> Outcome:
    status = result.api_error_status
    if end.api_error in _AUTHORIZATION or status in {401, 402, 403}:
        return Outcome.UNAUTHORIZED
    if end.api_error in _WEATHER or status in {408, 409, 429} or (status or 0) >= 500:  # noqa: PLR2004  # HTTP: the server's fault
        return Outcome.WEATHER
    if end.api_error == "invalid_request" or status in {400, 413}:  # the CLI refuses some requests itself: no status
        return Outcome.SESSION_OVER
    if (result.terminal_reason, status, end.api_error) == (
        "api_error",
        None,
        "unknown",
    ):  # no answer, or no sense in it
        return Outcome.WEATHER
    return Outcome.FAILED if end.confirmed else Outcome.UNEXPLAINED


def follow(
    outcome: Outcome,
    ticket: Ticket,
    *,
    now_us: int,
    attempts: int,
    failed_starts: int = 0,
    note: str = "",
) -> PutBack | Held:
    """Return the fact that ends a claim whose run ended with `outcome`.

    Args:
        outcome: Not FINISHED, STOPPED, ORPHANED or a first RESUME_FAILED: those go on otherwise.
        ticket: As it was during the claim.
        now_us: The time.
        attempts: How many ends that the ticket caused hold it.
        failed_starts: Runs in a row, this one included, that ended before an assistant message, weather apart.
        note: For a person.
    """
    rule = RULES[outcome]
    if rule.hold is not None:
        return Held(ticket.token, rule.hold, note)
    if rule.next is Next.AGAIN:
        tried = ticket.attempts + 1
        if tried >= attempts:
            return Held(ticket.token, Reason.ATTEMPTS, note)
        return PutBack(ticket.token, Cause.ATTEMPT, now_us + round(retry_delay_s(tried) * _US), note)
    if rule.next is Next.PAUSE:
        return PutBack(ticket.token, Cause.START, 0, note)
    if rule.next is Next.WEATHER:
        return PutBack(ticket.token, Cause.WEATHER, 0, note)
    if failed_starts >= _FAILED_STARTS_TO_HOLD:
        return Held(ticket.token, Reason.SESSION, note)
    return put_off(ticket, Cause.START, now_us=now_us, note=note)


def put_off(ticket: Ticket, cause: Cause, *, now_us: int, note: str) -> PutBack:
    """Return the fact that lets a ticket wait by itself, twice as long as the last time, with no attempt."""
    return PutBack(ticket.token, cause, now_us + round(weather_delay_s(ticket.waits + 1) * _US), note)


def retry_delay_s(attempt: int, *, base_s: float = 10.0, cap_s: float = 300.0) -> float:
    """Return how long to wait after failed run number `attempt`.

    Doubles from `base_s`, never beyond `cap_s`; no jitter.

    Args:
        attempt: Runs failed so far, from 1.
        base_s: Seconds after the first failure.
        cap_s: Seconds at most.

    Raises:
        ValueError: `attempt` is below 1.
    """
    if attempt < 1:
        raise ValueError(f"attempt {attempt} is below 1")
    return min(base_s * 2.0 ** min(attempt - 1, 64), cap_s)  # a float overflows at exponent 1024


@dataclass(frozen=True, slots=True)
class Waits:
    """How long to wait for what is nobody's fault: doubling from the first to the longest."""

    first_s: float = 30.0
    longest_s: float = 1800.0


WAITS = Waits()


def weather_delay_s(wait: int, waits: Waits = WAITS) -> float:
    """Return how long to wait for what is nobody's fault, for the `wait`-th time in a row."""
    return retry_delay_s(wait, base_s=waits.first_s, cap_s=waits.longest_s)
