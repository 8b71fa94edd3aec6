"""What the tickets of a night are about, what the model says to each, and what has to come of it.

Pure. A ticket's script is safe to repeat, as a model's work is that was told so: each
shell command makes sure of what those before it were to do, and a check sends back what
a kill has cut off.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from runner.offline import Failure, Reply, Scene, Text, ToolUse
from runner.outcome import Outcome
from tests.daemons import bash, say
from tickets.ticket import Reason, State

Turns = tuple[Reply | Failure, ...]

TICKET_MICROUSD = 300_000
QUESTION, ANSWER = "Two as well?", "Yes, two as well."
_DELAY_S = 0.2
"""Before each reply: Claude Code writes its transcript up to 0.1 s late, and a model that answers sooner is none."""
_AGAIN = "\n\n---\n\nNote from the ticket runner: an earlier session"


class Kind(StrEnum):
    """What a ticket is about."""

    PLAIN = "plain"
    ASKS = "asks"
    DEPLOYS = "deploys"
    APPROVED = "approved"
    CHECKED = "checked"
    """Its check fails once."""
    STUMBLES = "stumbles"
    """A tool fails, another one takes a while."""
    TOO_DEAR = "too_dear"
    REFUSED = "refused"
    """The API refuses its conversation, in each session."""
    NEVER_GOOD = "never_good"
    IDLE = "idle"
    LOOPS = "loops"
    """Does the same again and again, which fails."""
    UNCLEAR = "unclear"
    """Nobody knows what became of its effect."""


class Fault(StrEnum):
    """What the model does to one ticket, once."""

    NONE = "none"
    OVERLOADED = "overloaded"
    BROKEN = "broken"
    LIMITED = "limited"
    LIMITED_FOR = "limited_for"
    """With the time when it ends."""
    REFUSED = "refused"
    """A 400: the session is over."""
    CUT = "cut"
    GARBAGE = "garbage"
    HANGS = "hangs"
    SLOW = "slow"
    STUCK = "stuck"
    """A tool that never ends."""


REASONS: Mapping[Kind, Reason] = {
    Kind.TOO_DEAR: Reason.BUDGET,
    Kind.REFUSED: Reason.ATTEMPTS,
    Kind.NEVER_GOOD: Reason.CHECKS,
    Kind.IDLE: Reason.NO_CHANGE,
    Kind.LOOPS: Reason.LOOP,
    Kind.UNCLEAR: Reason.EFFECT,
}
"""Why a person has to see to it; all other kinds are done in the morning."""

_ALWAYS = {Outcome.FINISHED, Outcome.ORPHANED, Outcome.STOPPED, Outcome.WEATHER, Outcome.NEVER_STARTED}
"""Each ticket may meet a storm or a kill; a kill of everything may be seen by the daemon before it dies itself."""
_OF_KIND: Mapping[Kind, set[Outcome]] = {
    Kind.ASKS: {Outcome.ASKED},
    Kind.APPROVED: {Outcome.ASKED},
    Kind.UNCLEAR: {Outcome.ASKED},
    Kind.TOO_DEAR: {Outcome.BUDGET},
    Kind.REFUSED: {Outcome.SESSION_OVER},
    Kind.LOOPS: {Outcome.LOOPED},
}
_OF_FAULT: Mapping[Fault, set[Outcome]] = {
    Fault.REFUSED: {Outcome.SESSION_OVER},
    Fault.HANGS: {Outcome.STALLED},
    Fault.STUCK: {Outcome.STALLED},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One ticket: what is said to it and what comes of it."""

    id: str
    kind: Kind
    fault: Fault = Fault.NONE
    at: int = 0
    """Before which turn the fault comes."""
    budget_microusd: int = TICKET_MICROUSD
    priority: int = 0

    @property
    def ends(self) -> tuple[State, Reason | None]:
        """What it is in the morning."""
        reason = REASONS.get(self.kind)
        return (State.DONE, None) if reason is None else (State.HELD, reason)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that its work makes."""
        names = {Kind.IDLE: (), Kind.CHECKED: ("one", "two", "good"), Kind.STUMBLES: ("one", "two")}
        first = ("one",) if self.kind in REASONS else ("one", "two")
        return tuple(f"{name}-{self.id}.txt" for name in names.get(self.kind, first))

    @property
    def front(self) -> dict[str, object]:
        """The front matter of its file."""
        front: dict[str, object] = {"title": f"Ticket {self.id}", "priority": self.priority}
        if self.budget_microusd != TICKET_MICROUSD:
            front["budget_usd"] = self.budget_microusd / 1e6
        if self.kind is Kind.NEVER_GOOD:
            front["verify"] = "false"
        elif self.files:
            front["verify"] = f"cat {' '.join(self.files)}"
        return front

    @property
    def text(self) -> str:
        """What it says; the script knows it by its end."""
        return f"Work on for-{self.id}"

    @property
    def scenes(self) -> tuple[Scene, Scene]:
        """What its sessions hear: those after the first one, which meet the fault no more, and the first one."""
        again, first = self._turns, _meets(self, self._turns)
        return Scene(f"for-{self.id}{_AGAIN}", _late(again)), Scene(f"for-{self.id}", _late(first))

    @property
    def explains(self) -> set[Outcome]:
        """How its runs may end."""
        return _ALWAYS | _OF_KIND.get(self.kind, set()) | _OF_FAULT.get(self.fault, set())

    @property
    def _turns(self) -> Turns:
        one, all_ = self._makes(1), self._makes(2)
        work: Turns
        match self.kind:
            case Kind.ASKS:
                work = (one, _ours("ask", question=QUESTION), all_)
            case Kind.DEPLOYS:
                work = (one, self._tells, self._tells, all_)
            case Kind.APPROVED:
                work = (one, _ours("release", version="1"), _ours("release", version="1"), all_)
            case Kind.STUMBLES:
                work = (bash("exit 7"), bash("sleep 2"), all_)
            case Kind.TOO_DEAR:
                work = (one,) * 9
            case Kind.REFUSED:
                return (one, one, _refusal())
            case Kind.IDLE:
                work = (bash("cat README.md"),)
            case Kind.LOOPS:
                work = (one, one, *(bash("exit 9"),) * 9)
            case Kind.UNCLEAR:
                work = (one, one, _ours("strange"), _ours("strange"), one)
            case _:
                work = (one, all_)
        mends = (self._makes(3), say(f"Mended {self.id}."), self._makes(3), say(f"Mended {self.id} again."))
        return (*work, say(f"Done with {self.id}."), *mends, *mends[:1], say(f"Mended {self.id} at last."))

    @property
    def _tells(self) -> Reply:
        deploy = ToolUse("mcp__runner__deploy", {"version": "1"})
        comment = ToolUse("mcp__runner__comment", {"operation": "plan", "body": f"One, then two, for {self.id}."})
        return Reply((deploy, comment))

    def _makes(self, count: int) -> Reply:
        """Return a reply that makes the first files, commits the first of them and leaves the others."""
        made = [f"test -e {name} || echo {self.id} > {name}" for name in self.files[:count]]
        commits = [
            f"git add {name}; git diff --cached --quiet || git commit -qm 'Add {name}'" for name in self.files[:1]
        ]
        return bash("; ".join([*made[:1], *commits, *made[1:]]) or "true")


def _ours(name: str, **given: str) -> Reply:
    return Reply((ToolUse(f"mcp__runner__{name}", dict(given)),))


def _refusal() -> Failure:
    message = "messages.3: tool_use ids were found without tool_result blocks"
    return Failure(400, kind="invalid_request_error", message=message, times=None)


def _late(turns: Turns) -> Turns:
    return tuple(replace(turn, delay_s=turn.delay_s or _DELAY_S) if isinstance(turn, Reply) else turn for turn in turns)


def _meets(plan: Plan, turns: Turns) -> Turns:
    """Return the turns of a session that meets the ticket's fault."""
    begun = Reply((Text(f"I think about {plan.id} "),), pace_s=0.05)
    times = 1 + int(plan.id) % 3
    soon = {"retry-after": "1"}
    met: Mapping[Fault, Reply | Failure] = {
        Fault.OVERLOADED: Failure(529, times=times),
        Fault.BROKEN: Failure(500, kind="api_error", times=times),
        Fault.LIMITED: Failure(429, kind="rate_limit_error", times=times),
        Fault.LIMITED_FOR: Failure(429, kind="rate_limit_error", times=times, headers=soon),
        Fault.REFUSED: _refusal(),
        Fault.CUT: replace(begun, cut=True),
        Fault.GARBAGE: replace(begun, garbage=True),
        Fault.HANGS: replace(begun, hang=True),
        Fault.SLOW: replace(bash("true"), delay_s=2.0),
        Fault.STUCK: bash("sleep 600"),
    }
    return (*turns[: plan.at], *([met[plan.fault]] if plan.fault in met else []), *turns[plan.at :])
