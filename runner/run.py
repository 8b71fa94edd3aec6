"""One CLI process and its one result: which session, with what allowance, and what it cost.

The rows of a run are written before its process exists, and its end is accepted
by its id, once, whatever became of the claim meanwhile: money is never lost.

Knows the store, the agent, the transcript and the processes. Does not know checks,
delivery or the supervisor.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from anyio.to_thread import run_sync

from runner import agent, processes, transcript
from runner.agent import ApiRetried, Message, RateLimited, Said, Started, Stop, ToolEnded, ToolStarted
from runner.budget import Cost, Scarce, allowance, run_cost
from runner.children import launch_variable
from runner.config import Config
from runner.events import Name, Value
from runner.home import Home
from runner.outcome import RULES, Ending, Outcome, StoppedBy, classify
from runner.processes import Cookie
from runner.redact import Redactor
from runner.session import Kind, Plan, Session, Transcript, after_failed_resume, choose, session_id
from runner.store import Store, Tx, runs, sessions, tickets
from runner.store.runs import RunRow
from runner.store.tickets import Row
from runner.worktree import Repository, Tree
from tickets.ticket import FreshUsed


@dataclass(frozen=True, slots=True)
class Parts:
    """What every claim of a daemon works with."""

    config: Config
    home: Home
    store: Store
    repository: Repository
    redactor: Redactor
    launcher: Path
    cli: Path
    cli_environment: Mapping[str, str]
    """All that the CLI gets, the model's credential included, but for its cookie."""
    command_environment: Mapping[str, str]
    """All that set-up and check commands get, but for their cookie."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run came to."""

    id: str
    outcome: Outcome
    ending: Ending
    cost: Cost


Prompt = Callable[[Plan, int], str]
"""The prompt for a plan and what may be spent, in micro-dollars."""


async def converse(
    parts: Parts, row: Row, tree: Tree, *, prompt: Prompt, system: str, kind: Kind | None, stop: Stop
) -> Ran | Scarce:
    """Run the CLI once for a claimed ticket; a second time in a new session if its session could not be resumed.

    Args:
        parts: Of the daemon.
        row: The ticket as claimed.
        tree: Where the agent works.
        prompt: Makes the prompt when the session is chosen.
        system: What is appended to the system prompt.
        kind: What to call the run when it resumes (FIX); None for what it is.
        stop: Set by others to end the run.

    Returns:
        How the run ended, or which cap left too little to start it.

    Raises:
        LostTicket: The claim is not ours any more.
    """
    known = _Generations(parts, row, tree)
    last = await parts.store.write(sessions.last_session, row.ticket.id)
    plan = choose(last, name=known.id, transcript=known.transcript, fresh=row.ticket.fresh)
    ran = await _run(parts, row, tree, plan=plan, prompt=prompt, system=system, kind=kind, stop=stop)
    if isinstance(ran, Scarce) or ran.outcome is not Outcome.RESUME_FAILED:
        return ran
    failed = Session(plan.id, plan.generation, confirmed=True)
    plan = after_failed_resume(failed, name=known.id, transcript=known.transcript)
    return await _run(parts, row, tree, plan=plan, prompt=prompt, system=system, kind=None, stop=stop)


async def reap(parts: Parts, ticket: str, *, run: str | None = None) -> None:
    """End every process of the ticket that an agent started, and log what there was.

    Raises:
        ProcessesRemain: Some do not end; nothing else may start in their worktree.
    """
    reaped = await processes.reap(str(parts.home.path), ticket)
    if reaped.processes:
        names = sorted({process.name for process in reaped.processes})
        await parts.store.write(
            Tx.log, ticket, Name.PROCESSES_REAPED, run=run, names=names, cli=reaped.cli_alive, killed=reaped.cli_killed
        )


async def account(parts: Parts, ticket: str | None = None) -> None:
    """End the runs of one ticket, or of all, that a dead daemon left open, with what their transcripts tell."""
    for run in await parts.store.write(runs.unended, ticket):
        cost = await run_sync(_cost, parts, parts.repository.path_of(run.ticket), run, None)
        await parts.store.write(runs.end_run, run.id, outcome=Outcome.ORPHANED, cost=cost)


async def _run(
    parts: Parts, row: Row, tree: Tree, *, plan: Plan, prompt: Prompt, system: str, kind: Kind | None, stop: Stop
) -> Ran | Scarce:
    before = await run_sync(transcript.read, transcript.path(parts.home.claude, tree.path, plan.id))
    kind = kind if kind is not None and plan.kind is Kind.RESUMED else plan.kind
    begun = await parts.store.write(
        _begin, row=row, plan=plan, kind=kind, system=system, before=before, config=parts.config
    )
    if isinstance(begun, Scarce):
        return begun
    listener = _Listener(parts, row, begun.id, plan)
    ending = await agent.converse(
        _options(parts, row, tree, plan, system=system, allowance_microusd=begun.allowance_microusd),
        prompt(plan, begun.allowance_microusd),
        clocks=_clocks(parts.config),
        stop=stop,
        end_processes=listener.end_processes,
        before_tool=listener.before_tool,
        on_message=listener.on_message,
    )
    outcome = classify(ending)
    cost = await run_sync(_cost, parts, tree.path, begun, ending)
    mine = await parts.store.write(
        _end, row=row, run=begun, plan=plan, ending=ending, outcome=outcome, cost=cost, cli=listener.cli_version
    )
    if not mine:
        stop.set(StoppedBy.LOST)
        return Ran(begun.id, Outcome.STOPPED, ending, cost)
    return Ran(begun.id, outcome, ending, cost)


def _begin(
    tx: Tx, *, row: Row, plan: Plan, kind: Kind, system: str, before: transcript.Reading, config: Config
) -> RunRow | Scarce:
    """Give the run its allowance and write its session and its row, or say which cap forbids it."""
    ticket = row.ticket
    day_spent, day_reserved = runs.day_money(tx, day_start_us(tx.now_us))
    given = allowance(
        ticket_cap=row.spec.budget_microusd or config.limits.ticket_microusd,
        ticket_spent=runs.spent(tx, ticket.id),
        day_cap=config.limits.day_microusd,
        day_spent=day_spent,
        day_reserved=day_reserved,
    )
    if isinstance(given, Scarce):
        return given
    last = sessions.last_session(tx, ticket.id)
    if last is None or last.id != plan.id:
        sessions.open_session(
            tx,
            ticket.id,
            ticket.token,
            session=plan.id,
            generation=plan.generation,
            prompt_sha=hashlib.sha256(system.encode()).hexdigest(),
            close_previous=plan.close,
        )
    if tickets.get(tx, ticket.id).ticket.fresh:
        tickets.apply(tx, ticket.id, FreshUsed(ticket.token))
    return runs.begin_run(
        tx,
        ticket=ticket.id,
        token=ticket.token,
        session=plan.id,
        kind=kind,
        carried_microusd=(before.total_microusd or 0) if plan.resume else 0,
        transcript_bytes=before.size_bytes,
        allowance_microusd=given,
    )


def _end(
    tx: Tx, *, row: Row, run: RunRow, plan: Plan, ending: Ending, outcome: Outcome, cost: Cost, cli: str | None
) -> bool:
    """Save how a run ended; return False when the claim is not ours any more (the money is saved all the same)."""
    runs.end_run(tx, run.id, outcome=outcome, cost=cost, result=ending.result, cli_version=cli)
    if not tickets.is_claimed(tx, row.ticket.id, row.ticket.token):
        return False
    if RULES[outcome].closes_session:
        sessions.close_session(tx, plan.id, str(outcome))
    if outcome is Outcome.FINISHED:
        tx.log(row.ticket.id, Name.AGENT_FINISHED, run=run.id)
    return True


def _cost(parts: Parts, worktree: Path, run: RunRow, ending: Ending | None) -> Cost:
    """Return what a run cost: by its result, else by what the CLI wrote while it ran."""
    after = transcript.read(transcript.path(parts.home.claude, worktree, run.session), since_bytes=run.transcript_bytes)
    result = None if ending is None else ending.result
    spoke = run.confirmed or (ending is not None and ending.confirmed)
    lost = spoke and after.state is Transcript.MISSING
    return run_cost(
        carried=run.carried_microusd,
        total=None if result is None else result.total_cost_microusd,
        last_total=after.total_microusd if after.total_is_new else None,
        priced=None if lost else transcript.price(after.usages),
        cut=after.cut and result is None,
    )


def _options(parts: Parts, row: Row, tree: Tree, plan: Plan, *, system: str, allowance_microusd: int) -> agent.Options:
    cookie = Cookie(str(parts.home.path), row.ticket.id, row.ticket.token)
    return agent.Options(
        cwd=tree.path,
        session_id=plan.id,
        resume=plan.resume,
        cli_path=parts.launcher,
        environment=launch_variable(parts.cli, cookie=cookie, environment=parts.cli_environment),
        config_dir=parts.home.claude,
        system_append=system,
        model=row.spec.model or parts.config.agent.model,
        tools=row.spec.tools if row.spec.tools is not None else parts.config.agent.tools,
        max_budget_microusd=allowance_microusd,
    )


def _clocks(config: Config) -> agent.Clocks:
    clocks = config.clocks
    return agent.Clocks(
        start_s=clocks.start_s,
        silence_s=clocks.silence_s,
        tool_silence_s=clocks.tool_silence_s,
        linger_s=clocks.linger_s,
        run_s=clocks.run_s,
    )


def day_start_us(now_us: int) -> int:
    """Return when the UTC day of `now_us` began."""
    day_us = 24 * 3600 * 1_000_000
    return now_us - now_us % day_us


@dataclass(frozen=True, slots=True)
class _Generations:
    """A ticket's sessions, by generation."""

    parts: Parts
    row: Row
    tree: Tree

    def id(self, generation: int) -> str:
        return session_id(self.row.source, self.row.ticket.id, generation)

    def transcript(self, generation: int) -> Transcript:
        return transcript.read(transcript.path(self.parts.home.claude, self.tree.path, self.id(generation))).state


class _Listener:
    """Puts what the agent does into the log, as it does it; a claim that is lost raises and so ends the run."""

    def __init__(self, parts: Parts, row: Row, run: str, plan: Plan) -> None:
        self._parts, self._row, self._run, self._plan = parts, row, run, plan
        self._confirmed = False
        self.cli_version: str | None = None

    async def end_processes(self) -> None:
        """Take the one stop path."""
        await reap(self._parts, self._row.ticket.id, run=self._run)

    async def before_tool(self, tool: ToolStarted) -> None:
        """Save that a tool begins, before it does: after a crash in it, whoever comes next knows."""
        summary = self._parts.redactor.text(tool.summary)
        await self._log(Name.TOOL_STARTED, tool_use_id=tool.tool_use_id, tool=tool.name, summary=summary)

    async def on_message(self, message: Message) -> None:
        """Save what is worth knowing later."""
        match message:
            case Started(_, cli_version, model):
                self.cli_version = cli_version
                await self._save_pid()
                await self._log(Name.AGENT_STARTED, cli_version=cli_version, model=model)
            case ToolEnded(tool_use_id, is_error):
                await self._log(Name.TOOL_ENDED, tool_use_id=tool_use_id, is_error=is_error)
            case Said() if not self._confirmed:
                self._confirmed = True
                await self._parts.store.write(sessions.confirm_session, self._plan.id, self._run)
            case ApiRetried(attempt, status, error, delay_s):
                await self._log(Name.AGENT_RETRIED, attempt=attempt, status=status, error=error, delay_s=delay_s)
            case RateLimited(status, kind, reset_at_us):
                await self._log(Name.AGENT_LIMITED, status=status, kind=kind, reset_at_us=reset_at_us)
            case _:
                pass

    async def _save_pid(self) -> None:
        found = await run_sync(processes.find, str(self._parts.home.path), self._row.ticket.id, "agent")
        for process in found:
            if process.is_cli:
                await self._parts.store.write(runs.set_pid, self._run, process.pid, process.start)

    async def _log(self, name: Name, **payload: Value) -> None:
        ticket = self._row.ticket
        await self._parts.store.write(log_claimed, ticket.id, ticket.token, name, payload, run=self._run)


def log_claimed(
    tx: Tx, ticket: str, token: int, name: Name, payload: Mapping[str, Value], *, run: str | None = None
) -> None:
    """Log an event of a claim.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    tickets.require_claim(tx, ticket, token)
    tx.log(ticket, name, payload, run=run)
