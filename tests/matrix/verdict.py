"""What a killed ticket has to have in common with an undisturbed one, and what may differ, by how much.

Each check returns what is wrong, in words; nothing is wrong when there are none. Knows
what a player kept; does not know who struck.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path

from runner.events import Event, Name, finished_conversation, fold_log
from runner.offline import Served
from runner.store.effects import EffectState
from tests.daemons import COST
from tests.matrix.moments import Cell, Way
from tests.matrix.play import Played, Start, story_of
from tests.matrix.stage import SESSION
from tests.matrix.stories import ANSWER, FULL, QUESTION, TICKET

FILES = {"README.md": "A small repository.", "good.txt": "good", "one.txt": "one", "two.txt": "two"}
SUBJECTS = [FULL.front["title"], "Add one"]
DEPLOY_KEY = f"folder/{TICKET}/1/deploy"


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
    struck: int
    """How often a daemon was."""
    problems: tuple[str, ...]


def judge(played: Played) -> Verdict:
    """Compare a played cell with an undisturbed one."""
    problems = [problem for check in _checks(played.cell) for problem in check(played)]
    after = next((after for before, after in pairwise(played.starts) if before.struck), None)
    request = None if after is None else _next_request(played, after)
    return Verdict(
        cell=played.cell,
        goes_on="" if after is None else _goes_on(played, after),
        calls_more=len(_calls(played)) - story_of(played.cell).calls,
        seconds=None if after is None or request is None else (request.at_us - after.at_us) / 1e6,
        struck=played.blows,
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
    ticket, story = played.row.ticket, story_of(played.cell)
    if (ticket.state, ticket.reason) != (story.ends, None):
        yield f"the ticket is {ticket}"
    if not (played.stage.config.queue_directory / story.ends / f"{TICKET}.md").exists():
        yield f"its file is not in {story.ends}/"
    blows = zip(played.cell.blows, played.starts, strict=False)
    if missed := [str(blow) for blow, start in blows if not start.struck and not blow.may_miss]:
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
    for name, count in {Name.TICKET_TAKEN: 1, Name.RUN_ENDED: len(played.runs)}.items():
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
    if len(played.stage.comments(TICKET)) != len(said):
        yield f"comments {played.stage.comments(TICKET)} for {said}"
    kinds = Counter(row.kind for row in played.effects)
    holds = sum(event.name in {Name.TICKET_HELD, Name.TICKET_FINISHED} for event in played.log)
    if kinds != Counter(comment=1, deploy=1, report=holds):
        yield f"effects are of {kinds}, for {holds} ends"


@dataclass(frozen=True, slots=True)
class _Bill:
    """What a run cost by the server's record, against the ledger."""

    run: str
    lost: float
    """Complete responses that are not in the ledger."""
    cut: int
    """Responses that did not arrive."""
    marked: bool


def _bills(played: Played) -> Iterator[_Bill]:
    for run, later in zip(played.runs, [*played.runs[1:], None], strict=True):
        until_us = inf if later is None else later.started_at_us
        calls = [call for call in _calls(played) if run.started_at_us <= call.at_us < until_us]
        served = sum(call.cost_microusd for call in calls if call.complete)
        cut = sum(not call.complete and call.status in {0, 200} for call in calls)
        spent, marked = (0, False) if run.cost is None else (run.cost.microusd, run.cost.cut)
        yield _Bill(run.id, (served - spent) / COST, cut, marked)


def _money(played: Played) -> Iterator[str]:
    """Each complete response is in the ledger, once; a run of which one is not, or was cut, has a mark.

    Claude Code writes its transcript up to 0.1 s late and drops a response that comes while it ends, so a kill can take
    the latest response, and of everything at once also one that came just before; then there is a mark.
    """
    ways = {blow.way for blow in played.cell.blows}
    if any(run.cost is None for run in played.runs):
        yield "a run has no cost"
    for bill in _bills(played):
        if not 0 <= bill.lost <= (2 if Way.TREE in ways else 1) or bill.lost != int(bill.lost):
            yield f"the ledger is not what was served: {bill}"
        if (bill.lost or bill.cut) and not bill.marked:
            yield f"there is no mark: {bill}"
    if sum(bill.marked for bill in _bills(played)) > played.blows:
        yield f"marks for nothing: {[*_bills(played)]}"


def _session(played: Played) -> Iterator[str]:
    used = {run.session for run in played.runs} | {call.session_id for call in _calls(played)}
    if used != {SESSION}:
        yield f"sessions: {used}"
    if (leaves := _leaves(played.stage.transcript())) != 1:
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
    """Ask the model at most once more for each kill, and for what a kill of everything took of the transcript."""
    more = len(_calls(played)) - story_of(played.cell).calls
    taken = sum(bill.lost for bill in _bills(played)) if Way.TREE in {blow.way for blow in played.cell.blows} else 0
    if more > played.blows + taken:
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
        if missing or (kind != "first") != (FULL.text not in told):
            yield f"the first request of a {kind} run lacks {missing}:\n{told}"


def _run_after(log: Sequence[Event], since: int) -> int:
    return next(number for number, event in enumerate(log) if number >= since and event.name is Name.RUN_STARTED)


def _to_tell(played: Played, log: Sequence[Event], kind: str) -> Iterator[str]:
    """Yield what a run is told that starts after `log`."""
    if kind == "first":
        yield FULL.text
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
        yield from ("nobody rejected them",) if tools else ()
        done = {event.payload["key"] for event in log if event.name is Name.EFFECT_DONE}
        yield from (f"- {row.operation}: done" for row in played.effects if row.key in done and row.kind != "report")
        heard = {run.id for run in played.runs if run.confirmed}
        since = max((number for number, event in enumerate(log) if event.run in heard), default=0)
        yield ANSWER if Name.TICKET_ANSWERED in {event.name for event in log[since:]} else "was interrupted"


def _fell_back(played: Played) -> Iterator[str]:
    """A transcript that is lost costs one failed resume, and a fresh session goes on."""
    kinds = [(str(run.kind), str(run.outcome)) for run in played.runs[:3]]
    if kinds != [("first", "orphaned"), ("resumed", "resume_failed"), ("fallback", "asked")]:
        yield f"the runs were {kinds}"


def _checks(cell: Cell) -> Iterator[Callable[[Played], Iterator[str]]]:
    """Yield what is compared: a fresh session costs more, and a lost transcript knew what cannot be known any more."""
    yield from (_state, _log)
    if cell.loses:
        yield _fell_back
    else:
        yield _money
    if cell.story == FULL.name:
        yield from (_work, _effects, _questions)
    if not cell.fresh and not cell.loses:
        yield _calls_more
        yield from (_session, _told) if cell.story == FULL.name else ()
