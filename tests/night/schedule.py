"""What happens in a night: everything that a seed decides, and nothing else.

Pure. plans.py has what a ticket is about.
"""

from dataclasses import dataclass, replace
from random import Random

from runner.offline import Failure, Scene, Script
from runner.outcome import Outcome
from tests.daemons import Settings
from tests.matrix.moments import Way
from tests.night.plans import REASONS, TICKET_MICROUSD, Fault, Kind, Plan

CONCURRENCY = 4
BLOWS = 5
SILENCE_S = 8.0
EVENING_MICROUSD, DAY_MICROUSD = 30_000, 5_000_000
"""The day's cap at first, which the first tickets meet, and the one that the operator then gives it."""
_DEPLOY_S = 2.0
"""How long a deploy may take; a look-up that finds nothing waits for it."""
_MANY = {Kind.PLAIN: 11, Kind.DEPLOYS: 5, Kind.ASKS: 3, Kind.APPROVED: 2, Kind.CHECKED: 2, Kind.STUMBLES: 2}
_OFTEN = {fault: 2 for fault in Fault if fault not in {Fault.NONE, Fault.HANGS, Fault.STUCK}} | {
    Fault.HANGS: 1,  # each keeps a slot for as long as a silence may be
    Fault.STUCK: 1,
}
_KEY_IS_REFUSED = 0.7
"""How probable that is in a night."""


@dataclass(frozen=True, slots=True)
class Storm:
    """A time in which the model refuses everybody."""

    at: int
    """After so many complete responses."""
    failure: Failure
    requests: int | None
    """How many it refuses; None: until the operator has seen to it."""
    reset_s: int | None = None
    """How long the limit is said to last."""

    def script(self, now_s: int) -> Script:
        """Return what it says when it begins now."""
        if self.reset_s is None:
            return Script((Scene("", (self.failure,)),))
        limit = {
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-representative-claim": "five_hour",
            "anthropic-ratelimit-unified-reset": str(now_s + self.reset_s),
        }
        return Script((Scene("", (replace(self.failure, headers=limit),)),))


@dataclass(frozen=True, slots=True)
class Blow:
    """One kill of the daemon."""

    at: int
    """After so many complete responses."""
    delay_s: float
    way: Way


@dataclass(frozen=True, slots=True)
class Night:
    """A whole night."""

    seed: int
    early: tuple[Plan, ...]
    late: tuple[Plan, ...]
    storms: tuple[Storm, ...]
    blows: tuple[Blow, ...]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All tickets."""
        return (*self.early, *self.late)

    @property
    def script(self) -> Script:
        """What the model says when there is no storm."""
        return Script(tuple(scene for plan in self.plans for scene in plan.scenes))

    @property
    def explains(self) -> set[Outcome]:
        """How runs may end because of what all meet."""
        refused = {Outcome.UNAUTHORIZED} if any(storm.requests is None for storm in self.storms) else set()
        torn = {Outcome.RESUME_FAILED} if any(blow.way is Way.TREE for blow in self.blows) else set()
        return refused | torn


def night(seed: int, tickets: int = 30, blows: int = BLOWS) -> Night:
    """Return the night of a seed."""
    tickets -= len(_EARLY)
    rng = Random(seed)
    kinds = rng.sample([*REASONS], len(REASONS))[: max(tickets // 4, 1)]
    others = [kind for kind, count in _MANY.items() for _ in range(count)]
    rng.shuffle(others)
    faults = [fault for fault, count in _OFTEN.items() for _ in range(count)]
    faults = rng.sample(faults, min(len(faults), (tickets - len(kinds)) * 2 // 3))
    faults += [Fault.NONE] * tickets
    working = [(kind, fault) for kind, fault in zip(others, faults, strict=False)][: tickets - len(kinds)]
    both = [*working, *((kind, Fault.NONE) for kind in kinds)]
    rng.shuffle(both)
    plans = tuple(_plan(rng, f"{n:02}", kind, fault) for n, (kind, fault) in enumerate(both, len(_EARLY) + 1))
    most = tickets * 3
    return Night(seed, _EARLY, plans, _storms(rng, most), _blows(rng, blows, most))


_EARLY = tuple(Plan(f"{n:02}", Kind.PLAIN) for n in range(1, 4))
"""These are there when the daemon is first started, and start at once."""


def _plan(rng: Random, ticket: str, kind: Kind, fault: Fault) -> Plan:
    """Return a ticket; one whose runs fail by its own fault, after which it waits for 10 s and more, begins early."""
    fails = kind is Kind.REFUSED or fault in {Fault.REFUSED, Fault.HANGS, Fault.STUCK}
    budget_microusd = rng.randrange(15_000, 60_000, 1_000) if kind is Kind.TOO_DEAR else TICKET_MICROUSD
    return Plan(ticket, kind, fault, rng.randint(1, 2), budget_microusd, priority=int(fails))


def _storms(rng: Random, most: int) -> tuple[Storm, ...]:
    """Return storms while the first `most` responses are given; three of them pass by themselves."""
    failures = [
        Failure(529, times=None),
        Failure(500, kind="api_error", times=None),
        Failure(429, kind="rate_limit_error", times=None, headers={"retry-after": "1"}),
    ]
    storms = [Storm(rng.randint(5, most), failure, rng.randint(4, 9)) for failure in failures]
    storms.append(Storm(rng.randint(5, most), Failure(429, kind="rate_limit_error", times=None), 2, reset_s=4))
    if rng.random() < _KEY_IS_REFUSED:
        refusal = Failure(401, kind="authentication_error", times=None)
        storms.append(Storm(rng.randint(5, most), refusal, None))
    return tuple(sorted(storms, key=lambda storm: storm.at))


def _blows(rng: Random, count: int, most: int) -> tuple[Blow, ...]:
    """Return kills, so far apart that each finds the tickets further on than the one before."""
    apart = most // (count + 1)
    ways = [*Way, *rng.choices([*Way], k=count)][:count]
    rng.shuffle(ways)
    return tuple(
        Blow(n * apart + rng.randint(-apart // 4, apart // 4), rng.uniform(0, 0.8), way)
        for n, way in enumerate(ways, 1)
    )


def settings(day_microusd: int) -> Settings:
    """Return the configuration: clocks are short, and `{root}` is where everything is."""
    return {
        "concurrency": CONCURRENCY,
        "max_fix_rounds": 2,
        "clocks": {
            "drain_s": 1.0,
            "silence_s": SILENCE_S,
            "tool_silence_s": SILENCE_S,
            "weather_s": 0.5,
            "weather_max_s": 2.0,
        },
        "limits": {"ticket_usd": TICKET_MICROUSD / 1e6, "day_usd": day_microusd / 1e6, "same_error": 3},
        "effects.deploy": {
            "description": "Deploys.",
            "command": "sleep 0.1; printf '%s\\n' \"$IDEMPOTENCY_KEY\" >> {root}/world; sleep 0.1",
            "look_up": 'grep -qxF "$IDEMPOTENCY_KEY" {root}/world',
            "timeout_s": _DEPLOY_S,
        },
        "effects.deploy.input": {"version": "What to deploy."},
        "effects.release": {
            "description": "Releases.",
            "command": "printf '%s\\n' \"$IDEMPOTENCY_KEY\" >> {root}/world",
            "look_up": 'grep -qxF "$IDEMPOTENCY_KEY" {root}/world',
            "timeout_s": _DEPLOY_S,
            "approval": True,
        },
        "effects.release.input": {"version": "What to release."},
        "effects.strange": {
            "description": "Nobody knows.",
            "command": "printf '%s\\n' \"$IDEMPOTENCY_KEY\" >> {root}/world; exit 3",
        },
    }
