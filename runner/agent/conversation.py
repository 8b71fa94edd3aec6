"""One CLI process, from its start to the end of its stream.

The one invariant: `converse` returns or raises only after `end_processes` was awaited,
so that no CLI outlives it, whether the CLI, a clock, a request or a cancellation ended
the run. We never end it by closing or cancelling the SDK: the CLI writes transcript
and cost when it gets TERM, which is what `end_processes` begins with. (The SDK itself
closes, 5 s and then TERM, after a frame that it cannot read.)

Knows sdk.py for what is said. Does not know what an ending leads to.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

import anyio
from anyio.lowlevel import checkpoint

from runner.agent import sdk
from runner.agent.words import (
    Answer,
    ApiRetried,
    Clocks,
    Heard,
    Message,
    Options,
    RateLimited,
    ToolEnded,
    ToolStarted,
    cli_environment,
)
from runner.outcome import Ending, StoppedBy

_DRAIN_S = 10.0  # for the rest of the stream, once there is no process left to write it
_HEARD_S = 1.0
_BEAT_S = _LATE_S = 5.0  # so often we look whether we still run, and so much later is not just a loaded machine
_STDERR_LINES = 30
_LINE, _DETAIL, _SUMMARY, _TEXT = slice(500), slice(-4000, None), slice(200), slice(64 * 1024)
"""What is kept of a line of stderr, of an ending's detail, of a tool's input or the API's word, of a result's text."""


class Interrupted(Exception):
    """Somebody asked for the end while something was under way that has none of its own."""


class Stop:
    """Asks for the end of a run; whoever asks first gives the reason. Not for other threads."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.reason: StoppedBy | None = None
        self._ends: set[Callable[[], None]] = set()

    def set(self, reason: StoppedBy) -> None:
        """Ask."""
        self.reason = self.reason or reason
        self.event.set()
        for end in self._ends:
            end()

    @contextmanager
    def interrupts(self, also: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Cancel what is inside as soon as somebody asks, and call `also`: a thread heeds no cancellation.

        Raises:
            Interrupted: Somebody did.
        """
        with anyio.CancelScope() as scope:

            def end() -> None:
                scope.cancel()
                also()

            self._ends.add(end)
            try:
                if self.reason is not None:
                    end()
                yield
            finally:
                self._ends.discard(end)
        if scope.cancelled_caught:
            raise Interrupted


async def converse(
    options: Options,
    prompt: str,
    *,
    clocks: Clocks,
    stop: Stop,
    end_processes: Callable[[], Awaitable[None]],
    before_tool: Callable[[ToolStarted], Awaitable[None]],
    after_tool: Callable[[ToolEnded], Awaitable[None]],
    on_message: Callable[[Message], Awaitable[StoppedBy | None]],
) -> Ending:
    """Run the CLI once, to its end, and say how it ended.

    Whatever the SDK raises is in the `Ending`. A good result outranks a stop that came
    with it: the run had ended by itself.

    Args:
        options: The run's.
        prompt: Reaches the model as written: no command and no `@file` in it is obeyed.
        clocks: When to stop by ourselves.
        stop: Set by others to stop.
        end_processes: Ends every process of the run: TERM, grace, KILL, until none is left. Awaited at every end,
            also when nothing is left to end.
        before_tool: Awaited before a tool runs; when it raises, the tool does not run and the model is told that it
            failed.
        after_tool: Awaited after a tool that is not ours, before the model is told; the same is among the messages,
            before or after it.
        on_message: Awaited for each message, in order; what it returns is why the run is ended now, and what it raises
            ends the processes and is raised.

    Raises:
        Exception: What `on_message` or `end_processes` raises, as it is.
    """
    run = _Run(options, clocks, stop, end_processes, before_tool, after_tool, on_message)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run.drain, prompt)
            group.start_soon(run.watch)
    finally:
        with anyio.CancelScope(shield=True):
            await end_processes()
    if run.error is not None:
        raise run.error
    return run.ending()


@dataclass
class _Run:
    options: Options
    clocks: Clocks
    stop: Stop
    end_processes: Callable[[], Awaitable[None]]
    before_tool: Callable[[ToolStarted], Awaitable[None]]
    after_tool: Callable[[ToolEnded], Awaitable[None]]
    on_message: Callable[[Message], Awaitable[StoppedBy | None]]
    error: Exception | None = None
    """What `on_message` or `end_processes` raised."""
    enough: StoppedBy | None = None
    """Why `on_message` ends the run."""
    heard: bool = False
    tools: set[str] = field(default_factory=set)
    """Ids of the calls that run now."""
    ours: int = 0
    """How many of them are in this process."""
    stderr: deque[str] = field(default_factory=lambda: deque(maxlen=_STDERR_LINES))
    note: str = ""

    def __post_init__(self) -> None:
        self.end = Ending(resumed=self.options.resume)
        self.began = self.heard_at = self.told_at = anyio.current_time()
        self.draining = anyio.CancelScope(shield=True)
        self.watching = anyio.CancelScope()
        self.drained = anyio.Event()
        self.moved = anyio.Event()

    async def drain(self, prompt: str) -> None:
        """Take every frame to the end of the stream, which is where the CLI's own end shows."""
        try:
            await checkpoint()  # a run that is cancelled already starts nothing
            with self.draining:
                await self.take_all(prompt)
        except Exception as error:  # noqa: BLE001  the SDK raises bare ones too
            before, why = self.end, self.note
            self.end, self.note = sdk.explain(error, before, self.options.session_id, heard=self.heard)
            if before.stopped_by is not None:  # then it is we who broke the connection
                self.end, self.note = replace(self.end, trouble=before.trouble), why
        finally:
            self.drained.set()
            self.watching.cancel()

    async def take_all(self, prompt: str) -> None:
        if self.stop.reason is not None:
            self.end = replace(self.end, stopped_by=self.stop.reason)
            return
        own_tools = (replace(tool, call=partial(self.call, tool.call)) for tool in self.options.own_tools)
        frames = sdk.frames(
            replace(self.options, own_tools=tuple(own_tools)),
            prompt,
            environment=cli_environment(self.options.config_dir) | dict(self.options.environment),
            before_tool=self.start_tool,
            after_tool=self.after_tool,
            on_stderr=lambda line: self.stderr.append(self.cut(line, _LINE)),
        )
        async for frame in frames:
            self.heard, self.heard_at = True, anyio.current_time()
            self.moved.set()
            self.end, messages = sdk.understand(frame, self.end, self.options.session_id)
            for message in messages:
                self.heed(message)
                await self.tell(self.bounded(message))
            if not messages and self.heard_at >= self.told_at + _HEARD_S:
                await self.tell(Heard())
        self.end = replace(self.end, exit_code=0)

    def heed(self, message: Message) -> None:
        match message:
            case ToolEnded():
                self.tools.discard(message.tool_use_id)
            case ApiRetried():
                self.heard_at += message.delay_s  # it waits, and is silent from then on
            case _:
                pass

    def bounded(self, message: Message) -> Message:
        match message:
            case ToolEnded():
                return replace(message, error=self.cut(message.error, _TEXT))
            case ApiRetried():
                return replace(message, error=self.cut(message.error, _SUMMARY, line=True))
            case RateLimited():
                kind = message.kind and self.cut(message.kind, _SUMMARY, line=True)
                return replace(message, status=self.cut(message.status, _SUMMARY, line=True), kind=kind)
            case _:
                return message

    async def tell(self, message: Message) -> None:
        self.told_at = anyio.current_time()
        if self.error is None:
            try:
                self.enough = await self.on_message(message) or self.enough
            except Exception as error:  # noqa: BLE001  raised again when the processes are gone
                self.error = error
            if self.enough or self.error:
                self.moved.set()

    async def start_tool(self, tool: ToolStarted) -> None:
        await self.before_tool(replace(tool, summary=self.cut(tool.summary, _SUMMARY, line=True)))
        self.heard_at = anyio.current_time()
        self.tools.add(tool.tool_use_id)
        self.moved.set()

    async def call(
        self, tool: Callable[[Mapping[str, object]], Awaitable[Answer]], arguments: Mapping[str, object]
    ) -> Answer:
        """Call a tool of ours, which has limits of its own: no clock of a tool runs meanwhile."""
        self.ours += 1
        try:
            return await tool(arguments)
        finally:
            self.ours -= 1
            self.heard_at = anyio.current_time()

    async def watch(self) -> None:
        """Wait for the end of the stream, and bring it about when a clock, a request or a cancellation says so."""
        try:
            with self.watching:
                while (due_s := self.due()) > 0:
                    self.moved = anyio.Event()
                    nap_s = min(due_s, _BEAT_S)
                    wake_at = anyio.current_time() + nap_s
                    with suppress(Interrupted), self.stop.interrupts(), anyio.move_on_after(nap_s):
                        await self.moved.wait()
                    self.excuse(anyio.current_time() - wake_at)
        finally:
            with anyio.CancelScope(shield=True):
                await self.finish()

    def excuse(self, late_s: float) -> None:
        """Take the time in which we ourselves did not run (SIGSTOP, a paused machine) off every clock."""
        if late_s > _LATE_S:
            self.began += late_s
            self.heard_at = max(self.heard_at, anyio.current_time())  # what was said meanwhile is yet to be read

    def due(self) -> float:
        """Return in how many seconds the processes are to be ended, and note why when that is now."""
        if self.error is not None or self.end.trouble is not None:
            return 0
        left_s, reason = self.next_clock()
        if (asked := self.stop.reason or self.enough) is not None:
            left_s, reason = 0, asked if self.end.result is None else StoppedBy.LINGER
        if left_s <= 0:
            self.end = replace(self.end, stopped_by=reason)
            self.note = f"stopped by us: {reason}"
        return left_s

    def next_clock(self) -> tuple[float, StoppedBy]:
        now, clocks = anyio.current_time(), self.clocks
        if self.end.result is not None:
            return self.heard_at + clocks.linger_s - now, StoppedBy.LINGER
        if not self.heard:
            nearest = self.heard_at + clocks.start_s, StoppedBy.START
        elif self.ours:
            nearest = inf, StoppedBy.TOOL_SILENCE
        elif self.tools:
            nearest = self.heard_at + clocks.tool_silence_s, StoppedBy.TOOL_SILENCE
        else:
            nearest = self.heard_at + clocks.silence_s, StoppedBy.SILENCE
        if clocks.run_s is not None:
            nearest = min(nearest, (self.began + clocks.run_s, StoppedBy.RUN))
        if clocks.active_s is not None:
            nearest = min(nearest, (self.began + clocks.active_s, StoppedBy.ACTIVE))
        return nearest[0] - now, nearest[1]

    async def finish(self) -> None:
        """End the processes and let the stream run dry; twice, since one that is just being spawned is not seen."""
        try:
            for _ in range(2):
                if self.drained.is_set():
                    return
                await self.end_processes()
                with anyio.move_on_after(_DRAIN_S):
                    await self.drained.wait()
        except Exception as error:  # noqa: BLE001  as above
            self.error = error
        finally:
            self.draining.cancel()

    def cut(self, text: str, kept: slice, *, line: bool = False) -> str:
        """Return what is kept of a text, of which the secrets were taken out while they were whole."""
        text = self.options.redact(text)
        return (" ".join(text.split()) if line else text)[kept]

    def ending(self) -> Ending:
        active_us = round((anyio.current_time() - self.began) * 1e6)
        end, lines = replace(self.end, active_us=active_us), "\n".join(self.stderr)
        if end.result is not None:
            end = replace(end, result=replace(end.result, text=self.cut(end.result.text, _TEXT)))
        if end.stopped_by is not StoppedBy.LINGER and end.result is not None and not end.result.is_error:
            end = replace(end, stopped_by=None)
        return replace(end, detail=self.cut(f"{self.note}\n{lines}".strip(), _DETAIL))
