"""What a killed ticket has to have in common with an undisturbed one, and what may differ, by how much.

Each check returns what is wrong, in words; nothing is wrong when there are none. Knows
what a player kept; does not know who struck.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from runner import transcript
from runner.events import Event, Name, finished_conversation, fold_log
from runner.offline import Served
from runner.session import session_id
from runner.store.effects import EffectState
from tests.daemons import COST
from tests.matrix.moments import Cell, Way
from tests.matrix.play import Played, Start
from tests.matrix.stage import ANSWER, DEPLOY_KEY, QUESTION, TEXT, TICKET, TITLE, TURNS
from tickets.ticket import State

CALLS = len(TURNS)
FILES = {"README.md": "A small repository.", "good.txt": "good", "one.txt": "one", "two.txt": "two"}
SUBJECTS = [TITLE, "Add one"]
SESSION = session_id("folder", TICKET, 1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a cell."""

    cell: Cell
    goes_on: str
    """What the first daemon after the first blow did with the ticket."""
    calls_more: int
    """Model calls more than undisturbed."""
    seconds: float | None
    """From the start after the first blow to the next model request; None when none was made."""
    problems: tuple[str, ...]


def judge(played: Played) -> Verdict:
    """Compare a played cell with an undisturbed one."""
    checks = _OF_ALL if played.cell.fresh else (*_OF_ALL, *_OF_RESUMED)
    problems = [problem for check in checks for problem in check(played)]
    after = next((after for before, after in pairwise(played.starts) if before.struck), None)
    request = None if after is None else _next_request(played, after)
    return Verdict(
        cell=played.cell,
        goes_on="" if after is None else _goes_on(played, after),
        calls_more=len(_calls(played)) - CALLS,
        seconds=None if after is None or request is None else (request.at_us - after.at_us) / 1e6,
        problems=tuple(problems),
    )


def _calls(played: Played) -> list[Served]:
    return [call for call in played.stage.calls if not call.aside]


def _next_request(played: Played, start: Start) -> Served | None:
    """Return the first request of a run that a start began: a CLI that its daemon left may still ask, too."""
    run = next((event for event in played.log[len(start.before) :] if event.name is Name.RUN_STARTED), None)
    return None if run is None else next((call for call in _calls(played) if call.at_us > run.at_us), None)


def _goes_on(played: Played, start: Start) -> str:
    """Return what a start did first of: a run of which kind, a check, a delivery; or that nothing was left."""
    for event in played.log[len(start.before) :]:
        match event.name:
            case Name.RUN_STARTED:
                return f"{event.payload['kind']} run"
            case Name.CHECK_STARTED:
                return "checks"
            case Name.BRANCH_PUSHED:
                return "delivers"
            case Name.TICKET_HELD:
                return "holds"
            case Name.EFFECT_CLAIMED | Name.EFFECT_DONE if start.before and _is_over(start.before):
                return "reports"
            case _:
                pass
    return "nothing"


def _is_over(log: Sequence[Event]) -> bool:
    return any(event.name is Name.TICKET_FINISHED for event in log)


def _state(played: Played) -> Iterator[str]:
    ticket = played.row.ticket
    if (ticket.state, ticket.attempts, ticket.reason) != (State.DONE, 0, None):
        yield f"the ticket is {ticket}"
    if not (played.stage.config.queue_directory / "done" / f"{TICKET}.md").exists():
        yield "its file is not in done/"
    missed = [str(blow) for blow, start in zip(played.cell.blows, played.starts, strict=False) if not start.struck]
    if [blow for blow in played.cell.blows if blow.moment is not None and str(blow) in missed]:
        yield f"not struck: {missed}"
    if played.left:
        yield f"processes are left: {played.left}"


def _log(played: Played) -> Iterator[str]:
    for log in (played.log, played.queue_log):
        if [event.seq for event in log] != list(range(1, len(log) + 1)):
            yield f"gaps in the log: {[event.seq for event in log]}"
    if fold_log(TICKET, played.log) != played.row.ticket:
        yield f"the log folds into {fold_log(TICKET, played.log)}, the row is {played.row.ticket}"
    counts = Counter(event.name for event in played.log)
    for name, count in {Name.TICKET_TAKEN: 1, Name.TICKET_FINISHED: 1, Name.RUN_ENDED: len(played.runs)}.items():
        if counts[name] != count:
            yield f"{counts[name]} times {name}"
    tokens = [event.payload["token"] for event in played.log if event.name is Name.TICKET_CLAIMED]
    if tokens != list(range(1, len(tokens) + 1)):
        yield f"tokens do not rise by one: {tokens}"


def _work(played: Played) -> Iterator[str]:
    stage = played.stage
    names = stage.remote("ls-tree", "-r", "--name-only", f"ticket/{TICKET}").splitlines()
    files = {name: stage.remote("show", f"ticket/{TICKET}:{name}") for name in names}
    if files != FILES:
        yield f"delivered are {files}"
    if (subjects := stage.remote("log", "--format=%s", f"main..ticket/{TICKET}").splitlines()) != SUBJECTS:
        yield f"the commits are {subjects}"
    if stage.remote("branch", "--format=%(refname:short)").splitlines() != ["main", f"ticket/{TICKET}"]:
        yield "the repository has other branches"
    worktree = stage.worktree(TICKET)
    if status := stage.run_git(worktree, "status", "--porcelain"):
        yield f"the worktree is not clean: {status}"
    if stage.run_git(worktree, "rev-parse", "HEAD") != stage.remote("rev-parse", f"ticket/{TICKET}"):
        yield "the worktree is not at what was delivered"
    if locks := [str(path) for path in stage.home.clone.rglob("*.lock")]:
        yield f"locks are left: {locks}"


def _effects(played: Played) -> Iterator[str]:
    if played.stage.deployed != [DEPLOY_KEY]:
        yield f"deployed: {played.stage.deployed}"
    states = {row.key: row.state for row in played.effects}
    if set(states.values()) != {EffectState.DONE}:
        yield f"effects are {states}"
    said = [row.key for row in played.effects if row.kind != "deploy"]
    if len(played.stage.comments) != len(said):
        yield f"comments {played.stage.comments} for {said}"
    kinds = Counter(row.kind for row in played.effects)
    holds = sum(event.name in {Name.TICKET_HELD, Name.TICKET_FINISHED} for event in played.log)
    if kinds != Counter(comment=1, deploy=1, report=holds):
        yield f"effects are of {kinds}, for {holds} ends"


def _money(played: Played) -> Iterator[str]:
    """Each complete response is in the ledger; one that is not has left the mark of a cut one."""
    calls = _calls(played)
    costs = [run.cost for run in played.runs if run.cost is not None]
    if len(costs) != len(played.runs):
        yield "a run has no cost"
    spent, served = sum(cost.microusd for cost in costs), sum(call.cost_microusd for call in calls if call.complete)
    marks, cut = sum(cost.cut for cost in costs), sum(not call.complete for call in calls)
    lost = (served - spent) / COST
    if lost + cut != marks:
        yield f"{lost} complete responses are not in the ledger and {cut} were cut, with {marks} marks"
    may_lose = sum(blow.way is Way.TREE for blow in played.cell.blows)
    if not 0 <= lost <= may_lose:
        yield f"the ledger has {spent} of {served} micro-dollars"


def _session(played: Played) -> Iterator[str]:
    used = {run.session for run in played.runs} | {call.session_id for call in _calls(played)}
    if used != {SESSION}:
        yield f"sessions: {used}"
    path = transcript.path(played.stage.home.claude, played.stage.worktree(TICKET), SESSION)
    if (leaves := _leaves(path)) != 1:
        yield f"the transcript has {leaves} ends"


def _leaves(path: Path) -> int:
    """Return how many messages no other message follows: one, unless the conversation forked."""
    entries = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    parents = {entry["uuid"]: entry.get("parentUuid") for entry in entries if "uuid" in entry}
    messages = {entry["uuid"] for entry in entries if entry.get("type") in {"user", "assistant"}}
    followed = set()
    for message in messages:
        before = parents.get(message)
        while before is not None and before not in messages:
            before = parents.get(before)
        followed.add(before)
    return len(messages - followed)


def _calls_more(played: Played) -> Iterator[str]:
    more = len(_calls(played)) - CALLS
    if more > played.blows:
        yield f"{more} model calls more after {played.blows} blows"
    for start in played.starts[1:]:
        names = [event.name for event in start.before]
        if finished_conversation(names) and Name.CHECK_PASSED in names and _next_request(played, start) is not None:
            yield "the model was asked after the conversation was finished and checked"


def _questions(played: Played) -> Iterator[str]:
    asked = [(question.text, question.answer) for question in played.questions]
    if len(asked) > 1 + played.blows or any(each != (QUESTION, ANSWER) for each in asked):
        yield f"questions: {asked}"


def _told(played: Played) -> Iterator[str]:
    """After each blow the next request says what was cut off and what is done, and the ticket only where it is new."""
    for start in played.starts[1:]:
        request = _next_request(played, start)
        if request is None:
            continue
        log = played.log[: _run_after(played.log, len(start.before))]
        told = "\n".join(request.last_user_texts)
        kind = played.log[len(log)].payload["kind"]
        missing = [text for text in _to_tell(played, log, str(kind)) if text not in told]
        if missing or (kind != "first") != (TEXT not in told):
            yield f"the first request of a {kind} run lacks {missing}:\n{told}"


def _run_after(log: Sequence[Event], since: int) -> int:
    return next(number for number, event in enumerate(log) if number >= since and event.name is Name.RUN_STARTED)


def _to_tell(played: Played, log: Sequence[Event], kind: str) -> Iterator[str]:
    """Yield what a run is told that starts after `log`."""
    if kind == "first":
        yield TEXT
    elif kind == "fix":
        yield "A check of this ticket failed"
    else:
        last = next((event.run for event in reversed(log) if event.name is Name.TOOL_STARTED), None)
        tools = {
            event.payload["tool_use_id"]: f"- {event.payload['tool']}: {event.payload['summary']}"
            for event in log
            if event.name is Name.TOOL_STARTED and event.run == last
        }
        for event in log:
            if event.name is Name.TOOL_ENDED:
                tools.pop(event.payload["tool_use_id"], None)
        yield from tools.values()
        done = {event.payload["key"] for event in log if event.name is Name.EFFECT_DONE}
        yield from (f"- {row.operation}: done" for row in played.effects if row.key in done and row.kind != "report")
        names = [event.name for event in log]
        heard = max((number for number, name in enumerate(names) if name is Name.AGENT_STARTED), default=0)
        yield ANSWER if Name.TICKET_ANSWERED in names[heard:] else "was interrupted"


_Check = Callable[[Played], Iterator[str]]
_OF_ALL: tuple[_Check, ...] = (_state, _log, _work, _effects, _questions)
_OF_RESUMED: tuple[_Check, ...] = (_money, _session, _calls_more, _told)
