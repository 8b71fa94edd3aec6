"""One CLI process and its one result: which session, with what allowance, and what it cost.

The rows of a run are written before its process exists, and its end is accepted
by its id, once, whatever became of the claim meanwhile: money is never lost.

Knows the store, the agent, the transcript and the processes. Does not know checks,
delivery or the supervisor.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from anyio.to_thread import run_sync

from runner import agent, transcript
from runner.accounts import Bill, bill_of, warn
from runner.agent import Stop, Tool
from runner.budget import Allowance, Cap, Scarce, Use, allowance
from runner.caps import uses
from runner.children import launch_variable
from runner.config import Config
from runner.events import Name
from runner.listener import Listener
from runner.meter import Meter
from runner.outcome import CLOCKS, RULES, Ending, Outcome, StoppedBy, classify
from runner.parts import Parts
from runner.processes import Cookie
from runner.session import Kind, Plan, Session, Transcript, after_failed_resume, choose, session_id
from runner.store import Tx, claims, log, runs, sessions, tickets
from runner.store.runs import RunRow
from runner.store.tickets import Row
from runner.worktree import Tree
from tickets.ticket import FreshUsed


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run came to."""

    id: str
    outcome: Outcome
    ending: Ending
    bill: Bill
    cap: Cap | None = None
    """Which cap ended it, if one did."""


Prompt = Callable[[Plan, int], str]
"""The prompt for a plan and what may be spent, in micro-dollars; it may read files."""

OwnTools = Callable[[str], tuple[Tool, ...]]
"""The tools of ours that the run with an id has."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What a run is told, and may ask us."""

    prompt: Prompt
    system: str
    """Appended to the system prompt."""
    tools: OwnTools
    kind: Kind | None = None
    """What to call a run that resumes (FIX); None for what it is."""


async def converse(parts: Parts, row: Row, tree: Tree, brief: Brief, stop: Stop) -> Ran | Scarce:
    """Run the CLI once for a claimed ticket; a second time in a new session if its session could not be resumed.

    Args:
        parts: Of the daemon.
        row: The ticket as claimed.
        tree: Where the agent works.
        brief: What it is told.
        stop: Set by others to end the run.

    Returns:
        How the run ended, or which cap left too little to start it.

    Raises:
        LostTicket: The claim is not ours any more.
    """
    known = _Generations(parts, row, tree)
    last = await parts.store.write(sessions.last_session, row.ticket.id)
    plan = choose(
        last,
        name=known.id,
        transcript=known.transcript,
        fresh=row.ticket.fresh,
        rules=_sha(brief.system) if parts.config.agent.on_rules_changed == "fresh" else None,
    )
    ran = await _run(parts, row, tree, plan, brief, stop)
    if isinstance(ran, Scarce) or ran.outcome is not Outcome.RESUME_FAILED:
        return ran
    failed = Session(plan.id, plan.generation, confirmed=True)
    plan = after_failed_resume(failed, name=known.id, transcript=known.transcript)
    return await _run(parts, row, tree, plan, brief, stop)


async def _run(parts: Parts, row: Row, tree: Tree, plan: Plan, brief: Brief, stop: Stop) -> Ran | Scarce:
    before = await run_sync(transcript.read, transcript.path(parts.home.claude, tree.path, plan.id))
    kind = brief.kind if brief.kind is not None and plan.kind is Kind.RESUMED else plan.kind
    begun = await parts.store.write(
        _begin, row=row, plan=plan, kind=kind, system=brief.system, before=before, config=parts.config
    )
    if isinstance(begun, Scarce):
        return begun
    run, given, used = begun
    prompt = await run_sync(brief.prompt, plan, given.microusd)
    meter = Meter(parts.store, parts.config, run, used, given)
    listener = Listener(parts, row, run.id, plan, meter.count)
    ending = await agent.converse(
        _options(parts, row, tree, plan, brief, run, given),
        prompt,
        clocks=_clocks(parts.config, given),
        stop=stop,
        end_processes=listener.end_processes,
        before_tool=listener.before_tool,
        after_tool=listener.after_tool,
        on_message=listener.on_message,
    )
    if listener.loop is not None and ending.stopped_by is StoppedBy.LOOP:
        ending = replace(ending, detail=str(listener.loop))
    asking = listener.cli_version is not None and await parts.store.write(log.may_be_asking, run.id)
    bill = await run_sync(partial(bill_of, parts.home.claude, tree.path, run, ending, asking=asking))
    ran = Ran(run.id, classify(ending), ending, bill, _cap_met(ending, given))
    account = "" if ending.result is None else parts.redactor.text(ending.result.text)
    if not await parts.store.write(
        _end, row=row, run=run, ran=ran, listener=listener, account=account, config=parts.config
    ):
        stop.set(StoppedBy.LOST)
        return replace(ran, outcome=Outcome.STOPPED)
    return ran


def _cap_met(ending: Ending, given: Allowance) -> Cap | None:
    """Return which cap ended a run, None when none did."""
    match classify(ending), ending.stopped_by:
        case Outcome.TURNS, _:
            return Cap.TICKET_TURNS
        case Outcome.BUDGET, StoppedBy.TOKENS:
            return Cap.TICKET_TOKENS
        case Outcome.BUDGET, StoppedBy.ACTIVE:
            return Cap.TICKET_ACTIVE_S
        case Outcome.BUDGET, _:
            return given.by
        case _:
            return None


def _begin(
    tx: Tx, *, row: Row, plan: Plan, kind: Kind, system: str, before: transcript.Reading, config: Config
) -> tuple[RunRow, Allowance, list[Use]] | Scarce:
    """Give the run its allowance and write its session and its row, or say which cap forbids it.

    In one transaction, so that no two starts are given the same money.
    """
    ticket = row.ticket
    used = uses(tx, ticket.id, config)
    given = allowance(used)
    if isinstance(given, Scarce):
        return given
    last = sessions.last_session(tx, ticket.id)
    if last is None or last.id != plan.id or not plan.resume:
        sessions.open_session(
            tx,
            ticket.id,
            ticket.token,
            session=plan.id,
            generation=plan.generation,
            prompt_sha=_sha(system),
            close_previous=plan.close,
        )
    else:
        sessions.resume_session(tx, plan.id, _sha(system))
    if tickets.get(tx, ticket.id).ticket.fresh:
        tickets.apply(tx, ticket.id, FreshUsed(ticket.token))
    run = runs.begin_run(
        tx,
        ticket=ticket.id,
        token=ticket.token,
        session=plan.id,
        kind=kind,
        carried_microusd=(before.total_microusd or 0) if plan.resume else 0,
        transcript_bytes=before.size_bytes,
        allowance_microusd=given.microusd,
    )
    return run, given, used


def _sha(system: str) -> str:
    return hashlib.sha256(system.encode()).hexdigest()


def _end(tx: Tx, *, row: Row, run: RunRow, ran: Ran, listener: Listener, account: str, config: Config) -> bool:
    """Save how a run ended; return False when the claim is not ours any more (the money is saved all the same)."""
    runs.end_run(
        tx,
        run.id,
        outcome=ran.outcome,
        cost=ran.bill.cost,
        turns=ran.bill.turns,
        tokens=ran.bill.tokens,
        ending=ran.ending,
        cli_version=listener.cli_version,
    )
    warn(tx, run, config)
    if not claims.is_claimed(tx, row.ticket.id, row.ticket.token):
        return False
    if ran.ending.stopped_by in CLOCKS:
        tx.log(row.ticket.id, Name.AGENT_STALLED, run=run.id, clock=str(ran.ending.stopped_by))
    if ran.outcome is Outcome.LOOPED and listener.loop is not None:
        tx.log(row.ticket.id, Name.AGENT_LOOPED, run=run.id, tool=listener.loop.tool, times=listener.loop.times)
    if RULES[ran.outcome].closes_session:
        sessions.close_session(tx, run.session, str(ran.outcome))
    if ran.outcome is Outcome.FINISHED:
        sessions.say(tx, run.session, run.id, f"account-{run.number}", json.dumps({"account": account}))
        tx.log(row.ticket.id, Name.AGENT_FINISHED, run=run.id)
    return True


def _options(
    parts: Parts, row: Row, tree: Tree, plan: Plan, brief: Brief, run: RunRow, given: Allowance
) -> agent.Options:
    cookie = Cookie(str(parts.home.path), row.ticket.id, row.ticket.token)
    environment = parts.private(parts.cli_environment, row.ticket.id)
    return agent.Options(
        cwd=tree.path,
        session_id=plan.id,
        resume=plan.resume,
        cli_path=parts.launcher,
        environment=launch_variable(parts.cli, cookie=cookie, environment=environment),
        config_dir=parts.home.claude,
        system_append=brief.system,
        model=row.spec.model or parts.config.agent.model,
        tools=row.spec.tools if row.spec.tools is not None else parts.config.agent.tools,
        max_budget_microusd=given.microusd,
        max_turns=given.turns,
        own_tools=brief.tools(run.id),
        redact=parts.redactor.text,
    )


def _clocks(config: Config, given: Allowance) -> agent.Clocks:
    clocks = config.clocks
    return agent.Clocks(
        start_s=clocks.start_s,
        silence_s=clocks.silence_s,
        tool_silence_s=clocks.tool_silence_s,
        linger_s=clocks.linger_s,
        run_s=clocks.run_s,
        active_s=None if given.active_us is None else given.active_us / 1e6,
    )


@dataclass(frozen=True, slots=True)
class _Generations:
    """A ticket's sessions, by generation."""

    parts: Parts
    row: Row
    tree: Tree

    def id(self, generation: int) -> str:
        return session_id(self.row.source, self.row.ticket.id, generation)

    def transcript(self, generation: int) -> Transcript:
        file = transcript.path(self.parts.home.claude, self.tree.path, self.id(generation))
        try:
            return transcript.read(file).state
        except OSError:  # no file, but something that the CLI cannot use either
            return Transcript.UNUSABLE
