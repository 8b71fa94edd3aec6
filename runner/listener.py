"""Put what an agent does into the log, as it does it.

What a tool is about to do is committed before it runs, and that it has ended before the model
is told. A claim that is lost raises here, and that ends the run. So does an agent that goes
round in circles.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
from anyio.to_thread import run_sync

from runner import processes
from runner.agent import ApiRetried, Call, Message, RateLimited, Said, Started, ToolEnded, ToolStarted, Used
from runner.events import Name, Value
from runner.loops import Calls
from runner.outcome import StoppedBy
from runner.parts import Parts, reap
from runner.session import Plan
from runner.store import Tx, claims, queue, runs, sessions
from runner.store.tickets import Row

_FIRST_CHARS = 300


@dataclass(frozen=True, slots=True)
class Loop:
    """A call that failed in the same way again and again, with nothing else that worked between."""

    tool: str
    summary: str
    error: str
    times: int

    def __str__(self) -> str:
        call = f"{self.tool}: {self.summary}" if self.summary else self.tool
        return f"`{call}` failed {self.times} times in the same way, and nothing worked between: {self.error}"


class Listener:
    """Puts what the agent does into the log, as it does it; a claim that is lost raises and so ends the run."""

    def __init__(
        self, parts: Parts, row: Row, run: str, plan: Plan, count: Callable[[Used], Awaitable[StoppedBy | None]]
    ) -> None:
        self._parts, self._row, self._run, self._plan, self._count = parts, row, run, plan, count
        self._confirmed = self._ending = False
        self._calls: dict[str, Call] = {}
        self._summaries: dict[str, str] = {}
        self._failing = Calls()
        self._ends, self._ended = anyio.Lock(), set[str]()
        self.cli_version: str | None = None
        self.loop: Loop | None = None
        """Why this ended the run, None when it did not."""

    async def end_processes(self) -> None:
        """Take the one stop path."""
        self._ending = True
        await reap(self._parts, self._row.ticket.id, run=self._run)

    async def before_tool(self, tool: ToolStarted) -> None:
        """Save that a tool begins, before it does: after a crash in it, whoever comes next knows."""
        self._summaries[tool.tool_use_id] = tool.summary
        await self._log(Name.TOOL_STARTED, tool_use_id=tool.tool_use_id, tool=tool.name, summary=tool.summary)

    async def after_tool(self, tool: ToolEnded) -> None:
        """Save that a tool has ended, before the model is told: after a crash from then on, a request may be cut."""
        await self._save(tool)

    async def on_message(self, message: Message) -> StoppedBy | None:
        """Save what is worth knowing later; say why when that ends the run."""
        await self._save(message)
        match message:
            case Said(calls=calls):
                self._calls |= {call.tool_use_id: call for call in calls}
            case ToolEnded():
                return self._judge(message)
            case Used():
                return await self._count(message)
            case _:
                pass
        return None

    def _judge(self, ended: ToolEnded) -> StoppedBy | None:
        call, summary = self._calls.pop(ended.tool_use_id, None), self._summaries.pop(ended.tool_use_id, "")
        if not ended.is_error:
            self._failing.succeeded()
        elif call is not None and not self._ending:
            times = self._failing.failed(call.digest, ended.error)
            if times >= self._parts.config.limits.same_error:
                first = next(iter(ended.error.strip().splitlines()), "")
                self.loop = Loop(call.name, summary, first[:_FIRST_CHARS], times)
                return StoppedBy.LOOP
        return None

    async def _save(self, message: Message) -> None:
        match message:
            case Started(_, cli_version, model):
                self.cli_version = cli_version
                await self._save_pid()
                await self._log(Name.AGENT_STARTED, cli_version=cli_version, model=model)
            case ToolEnded(tool_use_id, is_error) if not (is_error and self._ending):  # it may be we who ended it
                await self._end_tool(tool_use_id, is_error=is_error)
            case Said() if not self._confirmed:
                self._confirmed = True
                if await self._parts.store.write(_confirm, self._row.ticket.id, self._plan.id, self._run):
                    self._parts.wake()
            case ApiRetried(attempt, status, error, delay_s):
                await self._log(Name.AGENT_RETRIED, attempt=attempt, status=status, error=error, delay_s=delay_s)
            case RateLimited(status, kind, reset_at_us):
                await self._log(Name.AGENT_LIMITED, status=status, kind=kind, reset_at_us=reset_at_us)
            case _:
                pass

    async def _end_tool(self, tool_use_id: str, *, is_error: bool) -> None:
        async with self._ends:
            if tool_use_id not in self._ended:
                await self._log(Name.TOOL_ENDED, tool_use_id=tool_use_id, is_error=is_error)
                self._ended.add(tool_use_id)

    async def _save_pid(self) -> None:
        found = await run_sync(processes.find, str(self._parts.home.path), self._row.ticket.id, "agent")
        for process in found:
            if process.is_cli:
                await self._parts.store.write(runs.set_pid, self._run, process.pid, process.start)

    async def _log(self, name: Name, **payload: Value) -> None:
        ticket = self._row.ticket
        await self._parts.store.write(claims.log_event, ticket.id, ticket.token, name, payload, run=self._run)


def _confirm(tx: Tx, ticket: str, session: str, run: str) -> bool:
    """Save that the model spoke; True when that ends a pause of the queue."""
    sessions.confirm_session(tx, session, run)
    return queue.hear(tx, ticket)
