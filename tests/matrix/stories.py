"""What tickets live through: what the model says, how the outside is, what an operator does and how it ends.

FULL is the ticket of the matrix. The others are short and reach events that it does not.
The scripted model works as one that was told to make each step safe to repeat: each
tool first makes sure of what the tools before it were to do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runner.commands import Command, Verb
from runner.events import Event, Name
from runner.offline import Failure, Reply, Scene, Script, ToolUse
from runner.store.effects import EffectRow
from runner.store.tickets import Row
from tests.daemons import Settings, bash, say
from tickets.ticket import Reason, State

TICKET = "t"

_DELAY_S = 0.2
"""Before each reply: Claude Code writes its transcript up to 0.1 s late, and a kill loses that."""
_LIMIT_S = 2.0
"""How long a deploy may take; a look-up that finds nothing waits for it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What an operator sees."""

    row: Row
    open_effects: Sequence[EffectRow]
    log: Sequence[Event]
    queue_log: Sequence[Event]

    def count(self, name: Name) -> int:
        """Return how often something has happened."""
        return sum(event.name is name for event in (*self.log, *self.queue_log))

    @property
    def is_in_tool(self) -> bool:
        """Whether the ticket runs and the agent is in a tool."""
        ticket = self.row.ticket
        return (ticket.state, ticket.stop) == (State.RUNNING, None) and self.log[-1].name is Name.TOOL_STARTED


@dataclass(frozen=True, slots=True)
class Story:
    """A ticket's life; `{root}` in settings is where everything is."""

    name: str
    turns: tuple[Reply | Failure, ...]
    settings: Settings
    operator: Callable[[Seen], Command | None]
    """What the operator does about what there is to see."""
    ends: State = State.DONE
    text: str = "Do it."
    front: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """What is beside the repository, by name."""
    calls: int = 0
    """Of the model, when nobody disturbs it."""

    @property
    def script(self) -> Script:
        """The same turns in each session."""
        again = Scene("an earlier session worked on the ticket", self.turns)
        return Script((again, Scene("", self.turns)))


def _ours(name: str, **given: str) -> Reply:
    return Reply((ToolUse(f"mcp__runner__{name}", dict(given)),))


def _slowly(command: str) -> Reply:
    return bash(f"{command}; sleep 0.1")


def _turns(*turns: Reply | Failure) -> tuple[Reply | Failure, ...]:
    return tuple(replace(turn, delay_s=_DELAY_S) if isinstance(turn, Reply) else turn for turn in turns)


QUESTION, ANSWER = "Two as well?", "Yes, two as well."
CHECK = "sleep 0.1; cat one.txt two.txt good.txt"
_ONE = "test -e one.txt || echo one > one.txt; git add one.txt; git diff --cached --quiet || git commit -qm 'Add one'"
_TWO = f"{_ONE}; echo two > two.txt"
_GOOD = f"{_TWO}; echo good > good.txt"

# $1: what happens now. The daemon is told, and has the time to strike.
_DEPLOY = """\
step() {
  test "$(cat strike 2>/dev/null)" = "$1" || return 0
  rm strike
  kill -USR2 "${TICKET_RUNNER_COMMAND#* }"
  sleep 0.2
}
cd "${0%/*}"
step deploy.begun
sleep 0.1
printf '%s\\n' "$IDEMPOTENCY_KEY" >> world
step deploy.acted
sleep 0.1
echo deployed
"""


def _answers(seen: Seen) -> Command | None:
    asks = seen.row.ticket.reason is Reason.QUESTION and not seen.open_effects
    return Command(Verb.ANSWER, TICKET, text=ANSWER) if asks else None


FULL = Story(
    "full",
    _turns(
        _slowly(_ONE),
        _ours("comment", operation="plan", body="One, then two."),
        _ours("deploy", version="1"),
        _ours("ask", question=QUESTION),
        _ours("deploy", version="1"),  # it makes sure: Claude Code asks on for a moment when its daemon is gone
        _ours("comment", operation="plan", body="One, then two."),
        _slowly(_TWO),
        say("Done."),  # and the check says that good.txt is missing
        _slowly(_GOOD),
        _slowly(f"{_GOOD}; cat good.txt"),  # it makes sure: the first may be refused when its daemon is gone, and
        _slowly(f"{_GOOD}; cat one.txt good.txt"),  # the second, which Claude Code asked for even so, cut off
        say("Mended."),
    ),
    {
        "setup": ["true"],
        "verify": [CHECK],
        "max_fix_rounds": 3,
        "effects.deploy": {
            "description": "Deploys.",
            "command": "exec sh {root}/deploy",
            "look_up": 'grep -qxF "$IDEMPOTENCY_KEY" {root}/world',
            "timeout_s": _LIMIT_S,
        },
        "effects.deploy.input": {"version": "What to deploy."},
    },
    _answers,
    text="Add one, two and good. Deploy them.",
    front={"title": "Add the numbers"},
    files={"deploy": _DEPLOY, "world": ""},
    calls=12,
)


def _steers(seen: Seen) -> Command | None:
    """Do one thing after the other, each when the ticket is there."""
    state = seen.row.ticket.state
    steps = (
        (Name.TICKET_PARKED, 1, state is State.READY, Command(Verb.HOLD, TICKET)),
        (Name.QUEUE_PAUSED, 1, state is State.HELD, Command(Verb.PAUSE)),
        (Name.QUEUE_RESUMED, 1, True, Command(Verb.RESUME)),
        (Name.TICKET_RELEASED, 1, state is State.HELD, Command(Verb.RELEASE, TICKET)),
        (Name.TICKET_STOPPED, 1, seen.is_in_tool, Command(Verb.HOLD, TICKET)),
        (Name.TICKET_RELEASED, 2, state is State.HELD, Command(Verb.RELEASE, TICKET)),
        (Name.TICKET_RETRIED, 1, seen.is_in_tool, Command(Verb.RETRY, TICKET, fresh=True)),
        (Name.TICKET_CANCELLED, 1, seen.is_in_tool, Command(Verb.HOLD, TICKET)),
    )
    if seen.count(Name.TICKET_RETRIED) and state is State.HELD:
        return Command(Verb.CANCEL, TICKET)
    for name, times, is_time, command in steps:
        if seen.count(name) < times:
            return command if is_time else None
    return None


STEERED = Story(
    "steered",
    _turns(*(bash(f"(setsid sleep 300 >/dev/null 2>&1 &); sleep 2{number}") for number in range(9))),
    {},
    _steers,
    ends=State.CANCELLED,
    front={"not_before": "2999-01-01"},
    files={"state/queue/no ticket?.md": "What is this?"},
    calls=3,
)


def _decides(seen: Seen) -> Command | None:
    if seen.row.ticket.state is not State.HELD:
        return None
    for effect in seen.open_effects:
        if effect.is_unknown:
            return Command(Verb.SETTLE, key=effect.key, decision="abandon")
        if effect.waits_for_approval and seen.row.ticket.reason is Reason.APPROVAL:
            return Command(Verb.APPROVE, key=effect.key)
    return None


DECIDED = Story(
    "decided",
    _turns(_ours("refused"), _ours("strange"), _ours("strange"), _ours("asked"), _ours("asked"), say("Done.")),
    {
        "effects.refused": {"description": "Is refused.", "command": "exit 64"},
        "effects.strange": {"description": "Nobody knows.", "command": "exit 3"},
        "effects.asked": {"description": "Is approved.", "command": "true", "approval": True},
    },
    _decides,
    front={"expects": "nothing"},
    calls=6,
)


def _waits_no_longer(seen: Seen) -> Command | None:
    waits = seen.row.ticket.state is State.READY and seen.row.ticket.not_before_us > 0
    return Command(Verb.RELEASE, TICKET) if waits else None


WEATHER = Story(
    "weather",
    _turns(Failure(529), say("Done.")),
    {"setup": ["test -e {root}/ready || { touch {root}/ready; exit 1; }"]},
    _waits_no_longer,
    front={"expects": "nothing"},
    calls=2,
)

STORIES = (FULL, STEERED, DECIDED, WEATHER)

UNREACHED: Mapping[Name, str] = {
    Name.AGENT_STALLED: "no story waits for a clock to run out: test_agent_ends.py does",
    Name.AGENT_LOOPED: "no story goes round in circles: test_loops_e2e.py does",
    Name.AGENT_LIMITED: "Claude Code says it of subscriptions only, which the scripted model is not",
    Name.QUEUE_PROBED: "no story waits half a minute for the weather: test_weather.py lets the time pass",
    Name.BUDGET_WARNED: "no story comes near a cap: test_accounts.py does",
    Name.WORKTREE_FILLED: "the repository of the stories has no submodules: test_modules.py has one",
    Name.SESSION_OUTDATED: "no story changes the rules under a session: test_rules.py does",
    Name.BASE_MERGED: "no story has a base that moves: test_base_moves.py does",
    Name.BASE_CONFLICTED: "likewise",
    Name.WORKTREE_REMOVED: "no story lasts for days: test_upkeep.py moves the clock",
    Name.WORKTREE_KEPT: "as `worktree.removed`",
    Name.TRANSCRIPTS_REMOVED: "as `worktree.removed`",
    Name.MESSAGES_REMOVED: "as `worktree.removed`",
    Name.BUDGET_SET: "written in the transaction of `ticket.released`, which is a moment",
}
"""Events that no story reaches, each with the reason."""
