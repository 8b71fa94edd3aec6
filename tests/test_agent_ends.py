"""How a run ends that does not end by itself, and that it leaves nothing behind."""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import anyio
import pytest
from anyio.lowlevel import checkpoint

from runner import processes, transcript
from runner.agent import (
    Answer,
    Message,
    RateLimited,
    Said,
    Started,
    Tool,
    ToolEnded,
)
from runner.offline import (
    Failure,
    Reply,
    Script,
    ScriptedServer,
    Text,
    ToolUse,
)
from runner.outcome import Outcome, StoppedBy, Trouble, classify
from runner.redact import MARK, Redactor
from runner.session import Transcript
from tests.bench import CLOCKS, COST, SPEAKER, Bench, existing, say, until, use

pytestmark = pytest.mark.anyio


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose model has nothing to say yet."""
    with ScriptedServer(Script(())) as server:
        yield Bench(server, tmp_path)


async def test_a_killed_run_is_priced_from_its_transcript(bench: Bench) -> None:
    """After KILL in a tool the transcript holds what the server charged, and the session resumes without it."""
    bench.plays(use("Bash", command="echo one"), use("Bash", command="sleep 60"), say("Checked."))
    options = bench.options()

    async def kill() -> None:
        await bench.sleeping()
        await until(lambda: len(bench.read(options).usages) == 2)  # written about 0.1 s after it was received
        (found,) = [found for found in processes.find(str(bench.root)) if found.is_cli]
        os.kill(found.pid, signal.SIGKILL)

    async with anyio.create_task_group() as group:
        group.start_soon(kill)
        end = await bench.run(options)
    assert classify(end) is Outcome.KILLED
    assert (end.exit_code, end.confirmed, end.result, end.trouble) == (-9, True, None, None)
    reading = bench.read(options)
    assert (reading.state, reading.total_microusd, reading.total_is_new) == (Transcript.USABLE, None, False)
    assert (len(reading.usages), reading.cut) == (2, False)
    assert transcript.price(reading.usages) == 2 * COST == bench.server.cost_microusd
    end = await bench.run(replace(options, resume=True))
    assert end.result is not None
    assert (end.result.text, end.result.total_cost_microusd) == ("Checked.", COST)


async def test_a_stop_in_a_tool_leaves_transcript_and_cost(bench: Bench) -> None:
    """Asked to stop in a command, the CLI ends it and writes its cost, and nothing is left running."""
    bench.plays(use("Bash", command="sleep 60; touch late"), say("Never."))

    async def stop() -> None:
        await bench.sleeping()
        bench.stop.set(StoppedBy.DRAIN)
        bench.stop.set(StoppedBy.OPERATOR)

    options = bench.options()
    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        end = await bench.run(options)
    assert classify(end) is Outcome.STOPPED
    assert (end.stopped_by, end.exit_code, end.trouble, end.confirmed) == (StoppedBy.DRAIN, 143, None, True)
    reading = bench.read(options)
    assert (reading.total_microusd, reading.total_is_new, reading.cut) == (COST, True, False)
    assert [tool.is_error for tool in bench.heard(ToolEnded)] == [True]
    assert existing(options.cwd / "late") == []


async def test_a_run_that_is_asked_to_stop_first_starts_nothing(bench: Bench) -> None:
    """A stop that is asked for before the start costs nothing."""
    bench.stop.set(StoppedBy.LOST)
    options = bench.options()
    end = await bench.run(options)
    assert (classify(end), end.stopped_by, end.exit_code) == (Outcome.STOPPED, StoppedBy.LOST, None)
    assert bench.read(options).state is Transcript.MISSING


async def test_a_silent_model_is_stopped_and_marked_as_cut(bench: Bench) -> None:
    """A response that stops in the middle is silence, and the transcript says that one was in flight."""
    bench.plays(use("Bash", command="echo one"), Reply((Text("part " * 100),), hang=True, times=None))
    options = bench.options()
    end = await bench.run(options, clocks=replace(CLOCKS, silence_s=2))
    assert classify(end) is Outcome.STALLED
    assert (end.stopped_by, end.result) == (StoppedBy.SILENCE, None)
    assert "silence" in end.detail
    reading = bench.read(options)
    assert (len(reading.usages), reading.cut, reading.total_microusd) == (1, True, COST)


async def test_a_response_that_keeps_coming_is_no_silence(bench: Bench) -> None:
    """Each piece of a response is a sign of life, though the whole takes longer than the silence that is allowed."""
    bench.plays(Reply((Text("word " * 400),), pace_s=0.3))
    end = await bench.run(bench.options(), clocks=replace(CLOCKS, silence_s=2))
    assert classify(end) is Outcome.FINISHED


async def test_a_wait_that_the_api_asks_for_is_no_silence(bench: Bench) -> None:
    """While the CLI waits for as long as the API said, it is not stopped."""
    bench.plays(Failure(429, kind="rate_limit_error", headers={"retry-after": "3"}), say("Done."))
    end = await bench.run(bench.options(), clocks=replace(CLOCKS, silence_s=2))
    assert classify(end) is Outcome.FINISHED


async def test_a_tool_has_a_clock_of_its_own(bench: Bench) -> None:
    """A command may be silent for longer than the model, also beside another one, and not for longer than a tool."""
    two = Reply((ToolUse("Bash", {"command": "sleep 0.1"}), ToolUse("Bash", {"command": "sleep 3"})))
    bench.plays(two, say("Done."), use("Bash", command="sleep 60"))
    options = bench.options()
    end = await bench.run(options, clocks=replace(CLOCKS, silence_s=2))
    assert classify(end) is Outcome.FINISHED
    end = await bench.run(replace(options, resume=True), clocks=replace(CLOCKS, tool_silence_s=1))
    assert (classify(end), end.stopped_by) == (Outcome.STALLED, StoppedBy.TOOL_SILENCE)


async def test_a_tool_of_ours_has_no_clock_of_the_run(bench: Bench) -> None:
    """While the daemon does what an agent asked for, the run waits for longer than every clock of silence."""

    async def wait(_: Mapping[str, object]) -> Answer:
        with anyio.move_on_after(6):
            await anyio.Event().wait()
        return Answer("waited")

    bench.plays(Reply((ToolUse("mcp__runner__wait", {}),)), say("Done."))
    tool = Tool("wait", "Waits.", {"type": "object", "properties": {}}, wait)
    options = replace(bench.options(), own_tools=(tool,))
    end = await bench.run(options, clocks=replace(CLOCKS, silence_s=4, tool_silence_s=4))
    assert classify(end) is Outcome.FINISHED, end.detail


async def test_a_cli_that_says_nothing_is_a_failed_start(bench: Bench) -> None:
    """Without a first message the run is stopped, and counts as never started."""
    silent = bench.stub("silent", "#!/bin/sh\nexec sleep 60\n")
    end = await bench.run(bench.options(real_cli=silent), clocks=replace(CLOCKS, start_s=0.5))
    assert (classify(end), end.stopped_by) == (Outcome.NEVER_STARTED, StoppedBy.START)
    assert end.trouble is None


async def test_a_run_has_a_limit_as_a_whole(bench: Bench) -> None:
    """A run that works on and on is stopped at its limit."""
    bench.plays(*(use("Bash", command=f"sleep 0.5; echo {n}") for n in range(100)))
    end = await bench.run(bench.options(), clocks=replace(CLOCKS, run_s=4))
    assert (classify(end), end.confirmed) == (Outcome.STALLED, True)


async def test_a_cli_that_lingers_after_its_result_is_ended_and_its_result_kept(bench: Bench) -> None:
    """A process that does not go after the result costs the result nothing."""
    bench.plays(say("Done."))
    lingering = bench.stub("lingering", '#!/bin/sh\nCLI "$@"\nsleep 60\n')
    end = await bench.run(bench.options(real_cli=lingering), clocks=replace(CLOCKS, linger_s=1))
    assert classify(end) is Outcome.FINISHED
    assert end.stopped_by is StoppedBy.LINGER


async def test_a_stop_after_the_result_costs_the_result_nothing(bench: Bench) -> None:
    """Asked to stop when the result is there, the run ends at once and as the result says."""
    bench.plays(say("Done."))
    ended = bench.root / "ended"
    lingering = bench.stub("lingering", f'#!/bin/sh\nCLI "$@"\ntouch {ended}\nsleep 60\n')

    async def stop() -> None:
        await until(ended.exists)
        bench.stop.set(StoppedBy.OPERATOR)

    async with anyio.create_task_group() as group:
        group.start_soon(stop)
        end = await bench.run(bench.options(real_cli=lingering))
    assert (classify(end), end.stopped_by) == (Outcome.FINISHED, StoppedBy.LINGER)


async def test_a_cli_that_is_not_there_is_told_from_one_that_fails(bench: Bench) -> None:
    """No launcher, no CLI, one that cannot be run, one that talks nonsense and one that dies: each is told apart."""
    (bench.root / "plain").write_text("no program")
    ends = {
        name: await bench.run(options)
        for name, options in {
            "no launcher": bench.options(cli_path=bench.root / "nowhere"),
            "no cli": bench.options(real_cli=bench.root / "nowhere"),
            "no program": bench.options(real_cli=bench.root / "plain"),
            "nonsense": bench.options(
                real_cli=bench.stub("nonsense", "#!/bin/sh\necho '{\"type\": secret'\nexec cat >/dev/null\n")
            ),
            "dies": bench.options(
                real_cli=bench.stub("dies", "#!/bin/sh\nfor i in $(seq 900); do echo why $i >&2; done; exit 3\n")
            ),
        }.items()
    }
    assert {name: (end.trouble, end.exit_code) for name, end in ends.items()} == {
        "no launcher": (Trouble.CLI_MISSING, None),
        "no cli": (Trouble.CLI_MISSING, 127),
        "no program": (Trouble.SPAWN_FAILED, 126),
        "nonsense": (Trouble.PROTOCOL, None),
        "dies": (None, 3),
    }
    assert [classify(end) for end in ends.values()] == [Outcome.NO_CLI] * 3 + [Outcome.UNEXPLAINED] * 2
    assert "nowhere does not exist" in ends["no cli"].detail
    assert "secret" not in ends["nonsense"].detail
    assert ends["dies"].detail.endswith("why 900")
    assert len(ends["dies"].detail) <= 4000


async def test_frames_that_the_scripted_model_cannot_cause(bench: Bench) -> None:
    """A rejected limit tells when it ends, an end without a result is no success, a frame without shape is trouble."""
    info = {"status": "rejected", "resetsAt": 1_800_000_000, "rateLimitType": "five_hour"}
    limit = {"type": "rate_limit_event", "rate_limit_info": info, "uuid": "u", "session_id": "s"}
    end = await bench.run(bench.options(real_cli=bench.speaker(limit, {"type": "unheard of"})))
    assert (end.reset_at_us, end.exit_code, end.trouble) == (1_800_000_000_000_000, 0, None)
    assert bench.heard(RateLimited) == [RateLimited("rejected", "five_hour", 1_800_000_000_000_000)]
    assert classify(end) is Outcome.UNEXPLAINED
    message = {"id": "m", "model": "claude-sonnet-4-5", "content": [{"type": "text", "text": "Hello."}]}
    said = {"type": "assistant", "message": message, "session_id": "s", "parent_tool_use_id": None}
    end = await bench.run(bench.options(real_cli=bench.speaker(limit, said)))
    assert (end.reset_at_us, end.confirmed) == (None, True), "the limit did not keep the model from speaking"
    end = await bench.run(bench.options(real_cli=bench.speaker({"type": "assistant", "message": {"secret": 1}})))
    assert (end.trouble, "secret" in end.detail) == (Trouble.PROTOCOL, False)


SECRET, LINES = "sk-0123456789", "pem-01234\npem-56789"
LEAKING = (
    SPEAKER
    + f"""
hook = asked["request"]["hooks"]["PreToolUse"][0]["hookCallbackIds"][0]
given = {{"command": "x " * 97 + {SECRET!r}}}
call = {{"hook_event_name": "PreToolUse", "tool_use_id": "t", "tool_name": "Bash", "tool_input": given}}
request = {{"subtype": "hook_callback", "callback_id": hook, "tool_use_id": "t", "input": call}}
print(json.dumps({{"type": "control_request", "request_id": "r", "request": request}}), flush=True)
sys.stdin.readline()
told = [{LINES!r}, *["y" * 398] * 9, "z" * 390 + {SECRET!r}, "e" * 495 + {SECRET!r}]
print("\\n".join(told), file=sys.stderr, flush=True)
result = {{"subtype": "success", "is_error": False, "num_turns": 1, "duration_ms": 1, "duration_api_ms": 1}}
said = {{"type": "result", "session_id": "s", "result": "x" * (64 * 1024 - 5) + {SECRET!r}}}
print(json.dumps(said | result), flush=True)
"""
)


async def test_no_part_of_a_secret_is_left_by_a_cut(bench: Bench) -> None:
    """A secret that lies across the place where a text is cut is taken out whole, wherever we cut."""
    leaking = bench.stub("leaking", LEAKING)
    redact = Redactor.of([SECRET, LINES]).text
    end = await bench.run(replace(bench.options(real_cli=leaking), redact=redact, session_id="s"))
    assert end.result is not None
    (tool,) = bench.tools
    assert (tool.summary, len(end.result.text), len(end.detail)) == ("x " * 97 + MARK[:6], 64 * 1024, 4000)
    for text in (tool.summary, end.result.text, end.detail):
        assert MARK[:5] in text
        assert SECRET[:3] not in text
        assert SECRET[-3:] not in text


async def test_time_in_which_we_did_not_run_is_no_silence(bench: Bench) -> None:
    """Frozen for longer than every clock allows, we hear what the CLI has to say before we call it silent."""
    fifo = bench.root / "go"
    os.mkfifo(fifo)
    go = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    times = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1}
    init = {"type": "system", "subtype": "init", "session_id": "s"}
    result = {"type": "result", "subtype": "success", "session_id": "s", "is_error": False, "result": "Done.", **times}
    said = f"print(json.dumps({init!r}), flush=True)\nopen({str(fifo)!r}).readline()\nprint(json.dumps({result!r}))\n"
    loop, frozen = asyncio.get_running_loop(), anyio.Event()
    true_time = loop.time

    async def freeze(message: Message) -> None:
        if isinstance(message, Started):
            loop.time = lambda: true_time() + 3600  # type: ignore[method-assign]  # as SIGSTOP and SIGCONT do
            frozen.set()

    async def speak() -> None:
        await frozen.wait()
        for _ in range(20):  # rounds of the loop, in which the clocks were looked at
            await checkpoint()
        os.write(go, b"\n")

    bench.on = freeze
    options = replace(bench.options(real_cli=bench.stub("late", SPEAKER + said)), session_id="s")
    async with anyio.create_task_group() as group:
        group.start_soon(speak)
        end = await bench.run(options, clocks=replace(CLOCKS, run_s=60))
    os.close(go)
    assert end.result is not None, end.detail
    assert (end.result.text, end.exit_code, end.detail) == ("Done.", 0, "")
    assert end.active_us is not None
    assert end.active_us < 3600 * 10**6, "nor does the hour count"


async def test_a_cli_that_names_another_session_is_stopped_at_once(bench: Bench) -> None:
    """A conversation that is not the expected one goes no further."""
    bench.plays(use("Bash", command="sleep 60"))
    swap = f"case $a in --session-id=*) a=--session-id={uuid4()};; esac"
    other = bench.stub("other", f'#!/bin/sh\nfor a; do shift; {swap}; set -- "$@" "$a"; done\nexec CLI "$@"\n')
    end = await bench.run(bench.options(real_cli=other))
    assert (end.trouble, end.stopped_by) == (Trouble.WRONG_SESSION, None)
    assert classify(end) in {Outcome.KILLED, Outcome.NEVER_STARTED}


async def test_a_cancelled_run_leaves_no_cli(bench: Bench) -> None:
    """Cancelled from outside, a run ends its processes by the one stop path before it goes."""
    bench.plays(use("Bash", command="sleep 60"))
    options = bench.options()
    async with anyio.create_task_group() as group:
        group.start_soon(bench.run, options)
        await bench.sleeping()
        group.cancel_scope.cancel()
    assert bench.read(options).total_is_new
    assert [tool.is_error for tool in bench.heard(ToolEnded)] == [True], "the stream was heard to its end"


async def test_a_listener_that_fails_ends_the_run(bench: Bench) -> None:
    """What `on_message` raises is raised as it is, when the processes are gone."""
    bench.plays(use("Bash", command="sleep 600"))

    async def fail(message: Message) -> None:
        if isinstance(message, Said):
            raise OSError("lost")

    bench.on = fail
    with pytest.raises(OSError, match="lost"):
        await bench.run(bench.options(), clocks=replace(CLOCKS, tool_silence_s=600))
