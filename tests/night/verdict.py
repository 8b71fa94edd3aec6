"""What a bad night may cost, and what it may not.

Each check returns what is wrong, in words; nothing is wrong when there are none. Money
and effects are compared with what the outside recorded, not with what we believe.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

from runner.events import Event, Name, fold_log
from runner.outcome import RULES, Outcome
from runner.store.effects import EffectState
from tests.matrix.moments import Way
from tests.night.plans import Kind
from tests.night.schedule import CONCURRENCY, DAY_MICROUSD, EVENING_MICROUSD
from tests.night.world import Life, Morning
from tickets.ticket import State

_LEFT_FOR_NO_RUN = {"resume_failed", "transcript_unusable"}
"""Why a session that a kill has torn is closed before its next run."""
_CUT_SHORT = {Outcome.ORPHANED, Outcome.STOPPED, Outcome.KILLED, Outcome.NEVER_STARTED, Outcome.STALLED, Outcome.LOOPED}


def judge(morning: Morning) -> list[str]:
    """Return what is wrong."""
    found = [problem for check in (_fates, _queue, _day) for problem in check(morning)]
    for life in morning.lives:
        for check in (_ends, _log, _money, _work, _effects, _sessions):
            found += [f"{life.plan.id}: {problem}" for problem in check(morning, life)]
    return found


def story(morning: Morning) -> str:
    """Return the night in lines: what was to happen, and what became of each ticket."""
    lines = [f"seed {morning.night.seed}, {morning.starts} starts, {len(morning.calls)} requests"]
    lines += [f"blow {blow}" for blow in morning.night.blows]
    lines += [f"storm {each.failure.status} at {each.at} for {each.requests}" for each in morning.night.storms]
    for life in morning.lives:
        plan, ticket = life.plan, life.row.ticket
        fault = f"{plan.kind}, {plan.fault} at {plan.at}"
        runs = " ".join(f"{run.kind}:{run.outcome}{'+' if run.cost and run.cost.cut else ''}" for run in life.runs)
        money = f"${_spent(life) / 1e6:.4f} of ${_served(life) / 1e6:.4f}"
        lines.append(f"{plan.id} {fault}: {ticket.state} {ticket.reason or ''} {money} [{runs}] {ticket.note[:120]!r}")
    return "\n".join(lines)


def _fates(morning: Morning) -> Iterator[str]:
    """Every ticket is done, or held for what the schedule did to it."""
    foreseen = {plan.id: plan.ends for plan in morning.night.plans}
    became = {life.plan.id: (life.row.ticket.state, life.row.ticket.reason) for life in morning.lives}
    for ticket, ends in foreseen.items():
        if became.get(ticket) != ends:
            yield f"{ticket} was to be {ends} and is {became.get(ticket)}"


def _queue(morning: Morning) -> Iterator[str]:
    """Nothing is left behind, and as many daemons have worked as were started."""
    if morning.left:
        yield f"processes are left: {morning.left}"
    if locks := [str(path) for path in morning.site.home.clone.rglob("*.lock")]:
        yield f"locks are left: {locks}"
    yield from _gapless(morning.queue_log)
    names = Counter(event.name for event in morning.queue_log)
    if names[Name.DAEMON_STARTED] != morning.starts:
        yield f"{names[Name.DAEMON_STARTED]} daemons in the log, {morning.starts} were started"


def _day(morning: Morning) -> Iterator[str]:
    """The day's cap is passed by no more than one response of each that ran at once."""
    most = max((call.cost_microusd for call in morning.calls if call.complete), default=0)
    cost = sum(call.cost_microusd for call in morning.calls if call.complete)
    for spent, cap in ((morning.evening_microusd, EVENING_MICROUSD), (cost, DAY_MICROUSD)):
        if spent > cap + CONCURRENCY * most:
            yield f"the day cost {spent} of {cap}"
    if morning.evening_microusd < EVENING_MICROUSD:
        yield f"the day's first cap was not met: {morning.evening_microusd}"


def _ends(morning: Morning, life: Life) -> Iterator[str]:
    """Each run ended in a way that the schedule explains, and the ticket's file is where its state is."""
    early = {Outcome.BUDGET} if life.plan in morning.night.early else set()
    unexplained = {run.outcome for run in life.runs} - life.plan.explains - morning.night.explains - early
    if unexplained:
        yield f"ended for no reason of the schedule: {unexplained}"
    ticket = life.row.ticket
    if not (morning.site.config.queue_directory / ticket.state / f"{ticket.id}.md").exists():
        yield f"its file is not in {ticket.state}/"


def _log(_: Morning, life: Life) -> Iterator[str]:
    """The log is whole, and folds into the ticket."""
    yield from _gapless(life.log)
    if (folded := fold_log(life.plan.id, life.log)) != life.row.ticket:
        yield f"the log folds into {folded}, the row is {life.row.ticket}"
    tokens = [event.payload["token"] for event in life.log if event.name is Name.TICKET_CLAIMED]
    if tokens != list(range(1, len(tokens) + 1)):
        yield f"tokens do not rise by one: {tokens}"


def _money(morning: Morning, life: Life) -> Iterator[str]:
    """Each complete response is in the ledger, once, but for the last one of a run that was cut short; the cap holds.

    Claude Code counts what a stream that broke had announced, and a kill of everything
    may take two responses: see the crash matrix.
    """
    if open_runs := [run.id for run in life.runs if run.cost is None]:
        yield f"runs without a cost: {open_runs}"
    served, spent = _served(life), _spent(life)
    most = max((call.cost_microusd for call in life.calls if call.complete), default=0)
    short = sum(run.outcome in _CUT_SHORT for run in life.runs)
    each = 2 if Way.TREE in {blow.way for blow in morning.night.blows} else 1
    begun = sum(call.begun_microusd for call in life.calls if not call.complete)
    marked = any(run.cost is not None and run.cost.cut for run in life.runs)
    if spent > served + begun:
        yield f"the ledger has {spent}, of {served} served and {begun} begun"
    if spent < served - short * each * most:
        yield f"the ledger has {spent} of {served}, and {short} runs were cut short"
    if spent < served and not marked:
        yield f"the ledger has {spent} of {served}, and no mark: {_bills(life)}"
    unseen = max(served - spent, 0)
    if served > life.plan.budget_microusd + most + unseen:
        yield f"it cost {served} of {life.plan.budget_microusd}"


def _work(morning: Morning, life: Life) -> Iterator[str]:
    """What was done is at the origin; what a held ticket had done is in its worktree."""
    site, plan = morning.site, life.plan
    worktree = site.worktree(plan.id)
    if life.row.ticket.state is State.HELD:
        missing = [name for name in _made(life) if not (worktree / name).exists()]
        if missing:
            yield f"its worktree has no {missing}"
        return
    branch = f"ticket/{plan.id}"
    names = set(site.remote("ls-tree", "-r", "--name-only", branch).splitlines())
    if names != {"README.md", *plan.files}:
        yield f"delivered are {sorted(names)}"
    if wrong := [name for name in plan.files if site.remote("show", f"{branch}:{name}") != plan.id]:
        yield f"delivered otherwise than made: {wrong}"
    if f"Add {plan.files[0]}" not in site.remote("log", "--format=%s", f"main..{branch}").splitlines():
        yield "the agent's own commit is lost"
    if status := site.run_git(worktree, "status", "--porcelain"):
        yield f"the worktree is not clean: {status}"
    if site.run_git(worktree, "rev-parse", "HEAD") != site.remote("rev-parse", branch):
        yield "the worktree is not at what was delivered"


def _made(life: Life) -> list[str]:
    """Return the files that a tool made which ended: a kill may have cut off the only one."""
    ended = {
        event.payload["tool_use_id"]
        for event in life.log
        if event.name is Name.TOOL_ENDED and not event.payload["is_error"]
    }
    did = [
        str(event.payload["summary"])
        for event in life.log
        if event.name is Name.TOOL_STARTED and event.payload["tool_use_id"] in ended
    ]
    return [name for name in life.plan.files if any(name in summary for summary in did)]


def _effects(morning: Morning, life: Life) -> Iterator[str]:
    """Each effect happened once outside, and none is missing that the agent was told of."""
    outside = Counter(key for key in morning.site.deployed if key.split("/")[1] == life.plan.id)
    if twice := [key for key, count in outside.items() if count > 1]:
        yield f"happened twice: {twice}"
    ours = [row for row in life.effects if row.kind not in {"comment", "report"}]
    if done := {row.key for row in ours if row.state is EffectState.DONE} - set(outside):
        yield f"never happened: {done}"
    if unknown := set(outside) - {row.key for row in ours if row.state is EffectState.DONE or row.is_unknown}:
        yield f"happened, and the ledger does not know it: {unknown}"
    told = {str(event.payload["tool"]) for event in life.log if event.name is Name.TOOL_STARTED}
    if life.row.ticket.state is State.DONE and life.plan.kind in {Kind.DEPLOYS, Kind.APPROVED} and not ours:
        yield f"no effect, though tools were called: {told}"
    if life.row.ticket.state is State.DONE and any(row.state is not EffectState.DONE for row in life.effects):
        yield f"effects are {[(row.key, str(row.state)) for row in life.effects]}"
    said = [row.key for row in life.effects if row.kind in {"comment", "report"} and row.state is EffectState.DONE]
    if len(morning.site.comments(life.plan.id)) != len(said):
        yield f"comments {morning.site.comments(life.plan.id)} for {said}"


def _sessions(_: Morning, life: Life) -> Iterator[str]:
    """A session goes on unless the table of outcomes closes it, and is closed where it does not go on."""
    closed = {session.id: session.closed_reason for session in life.sessions}
    for before, after in pairwise(life.runs):
        closes = before.outcome is not None and RULES[before.outcome].closes_session
        goes_on = before.session == after.session
        torn = closed[before.session] in _LEFT_FOR_NO_RUN
        if closes and goes_on:
            yield f"{after.id} goes on in a session that {before.outcome} closes"
        if not closes and not goes_on and not torn:
            yield f"{after.id} has another session after {before.outcome}: {closed[before.session]}"
    generations = [session.generation for session in life.sessions]
    if [session.id for session in life.sessions[:-1] if session.closed_reason is None]:
        yield f"more than one open session, of generations {generations}"


def _bills(life: Life) -> list[str]:
    """Return what each run cost, by the ledger and by the record."""
    bills = []
    for run, later in zip(life.runs, [*life.runs[1:], None], strict=True):
        until_us = inf if later is None else later.started_at_us
        calls = [call for call in life.calls if run.started_at_us <= call.at_us < until_us]
        served = [f"{(call.at_us - run.started_at_us) / 1e6:.2f} s {call.status} {call.complete}" for call in calls]
        took = "" if run.ended_at_us is None else f"{(run.ended_at_us - run.started_at_us) / 1e6:.2f} s"
        bills.append(f"{run.id} {run.outcome} {run.cost} in {took}: {served}")
    return bills


def _gapless(log: Sequence[Event]) -> Iterator[str]:
    if [event.seq for event in log] != list(range(1, len(log) + 1)):
        yield f"gaps in the log: {[event.seq for event in log]}"


def _served(life: Life) -> int:
    return sum(call.cost_microusd for call in life.calls if call.complete)


def _spent(life: Life) -> int:
    return sum(run.cost.microusd for run in life.runs if run.cost is not None)
