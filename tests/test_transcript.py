"""What is read of a transcript, and whether the real CLI can do with it what is said."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from runner import transcript
from runner.offline import Reply, Scene, Script, ScriptedServer, Text, ToolUse
from runner.session import Transcript
from runner.transcript import Reading, Usage, Words

SONNET = Usage("msg", "claude-sonnet-4-5")


def line(kind: str, **fields: object) -> bytes:
    """Return a line of a transcript."""
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


def answer(identity: str, *, output: int = 500, model: str = "claude-sonnet-4-5", **fields: object) -> bytes:
    """Return a line of an assistant message."""
    usage = {"input_tokens": 1000, "output_tokens": output}
    return line("assistant", message={"id": identity, "model": model, "usage": usage}, **fields)


USER = line("user", message={"role": "user", "content": "Do it."}, timestamp="2026-01-01T00:00:01Z")
REQUEST = line("api-request", id="1")
TOTAL = line("cost-state", totalCostUSD=0.0315)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a session's transcript is to be."""
    return tmp_path / f"{uuid4()}.jsonl"


def read(file: Path, *lines: bytes, since_bytes: int = 0) -> Reading:
    """Read a transcript of these lines."""
    file.write_bytes(b"".join(lines))
    return transcript.read(file, since_bytes=since_bytes)


def spoken(*blocks: object, model: str = "claude-sonnet-4-5", **fields: object) -> bytes:
    """Return a line of an assistant message with content."""
    return line("assistant", message={"id": "m", "model": model, "content": list(blocks)}, **fields)


def words_of(file: Path, *lines: bytes) -> Words:
    """Read the last words of a transcript of these lines."""
    file.write_bytes(b"".join(lines))
    return transcript.last_words(file)


def test_last_words_are_those_of_the_agent_itself(file: Path) -> None:
    """The last text and the last plan count, not those of a subagent or of Claude Code, whatever else is there."""
    said = words_of(
        file,
        USER,
        spoken({"type": "text", "text": "First one."}),
        spoken("?", {"type": "text", "text": " Then two. "}),
        spoken({"type": "tool_use", "name": "Bash", "input": {}}, {"type": "text", "text": " "}),
        spoken({"type": "text", "text": "I am another."}, isSidechain=True),
        spoken({"type": "text", "text": "No response requested."}, model="<synthetic>"),
        line("assistant", message={"content": "as it should not be"}),
        line("assistant", message=7),
        b"torn",
    )
    assert said == Words("Then two.")


def came(result: object, **fields: object) -> bytes:
    """Return a line of what came of a call of a tool."""
    return line("user", message={"content": []}, toolUseResult=result, **fields)


def test_the_plan_is_what_became_of_its_steps(file: Path) -> None:
    """Steps have the state that they came to; those that were taken back, of others or not known are left out."""
    said = words_of(
        file,
        USER,
        *(came({"task": {"id": str(n), "subject": f"Add {n}", "description": "d"}}) for n in (1, 2, 3)),
        came({"success": True, "taskId": "1", "statusChange": {"from": "pending", "to": "completed"}}),
        came({"success": False, "taskId": "9", "updatedFields": [], "error": "Task not found"}),
        came({"success": True, "taskId": "8", "statusChange": {"from": "pending", "to": "completed"}}),
        came({"success": True, "taskId": "2", "updatedFields": ["subject"]}),
        came({"success": True, "taskId": "3", "statusChange": {"from": "pending", "to": "deleted"}}),
        came({"task": {"id": "4", "subject": "Add 4", "status": "in_progress"}}),
        came({"task": {"id": "5", "subject": "Another's"}}, isSidechain=True),
        came("Error: no"),
        came({"task": None, "taskId": 7}),
    )
    assert said == Words("", ("completed: Add 1", "pending: Add 2", "in_progress: Add 4"))


def test_last_words_are_looked_for_at_the_end(file: Path) -> None:
    """Of a transcript of any length only the end is read, and a line that it cuts is passed over."""
    much = line("user", message={"content": "x" * 9_000_000})
    early, late = spoken({"type": "text", "text": "Early."}), spoken({"type": "text", "text": "Late."})
    assert words_of(file, early, much, late) == Words("Late.")
    assert words_of(file, early, much) == Words()


@pytest.mark.parametrize("make", [lambda _: None, Path.mkdir, os.mkfifo, lambda file: file.symlink_to("/dev/zero")])
def test_where_no_transcript_is_nothing_was_said(file: Path, make: Callable[[Path], None]) -> None:
    """A missing transcript, or what is no file, has no last words and is no error."""
    make(file)
    assert transcript.last_words(file) == Words()


def test_a_missing_file_is_a_missing_transcript(file: Path) -> None:
    """There being no file is no error."""
    assert transcript.read(file) == Reading(Transcript.MISSING)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda file: file.symlink_to("/dev/zero")])
def test_what_is_no_file_is_not_read(file: Path, make: Callable[[Path], None]) -> None:
    """A directory, a pipe that nobody writes to and a link are refused at once, a subagent's too."""
    make(file)
    with pytest.raises(OSError, match=r"regular|symbolic"):
        transcript.read(file)
    main, agents = file.with_name("main.jsonl"), file.with_name("main") / "subagents"
    agents.mkdir(parents=True)
    file.rename(agents / file.name)
    with pytest.raises(OSError, match=r"regular|symbolic"):
        read(main, USER)


@pytest.mark.parametrize("amount", ["1e300", "-1", "9" * 400, "NaN", "Infinity"])
def test_amounts_that_cannot_be_are_garbage(file: Path, amount: str) -> None:
    """Totals and counts that no model reaches are passed over, and what is left fits into the ledger."""
    impossible = f'{{"type": "cost-state", "totalCostUSD": {amount}}}\n'.encode()
    counts = json.dumps({"input_tokens": 1000, "output_tokens": 500})[:-1] + f', "cache_read_input_tokens": {amount}}}'
    model = '"id": "a", "model": "claude-sonnet-4-5"'
    response = f'{{"type": "assistant", "message": {{{model}, "usage": {counts}}}}}\n'.encode()
    reading = read(file, USER, TOTAL, impossible, response)
    assert reading.total_microusd == 31_500
    assert [usage.cache_read for usage in reading.usages] == [0]
    most = replace(SONNET, output=2**53)
    assert transcript.price([replace(most, message_id=str(number)) for number in range(1000)]) == 2**53


def test_the_last_usage_of_a_message_counts_once(file: Path) -> None:
    """Every block of a message repeats its usage; the CLI's own messages used nothing."""
    reading = read(file, USER, answer("a", output=1), answer("a"), answer("b"), answer("c", model="<synthetic>"))
    used = Usage("a", "claude-sonnet-4-5", input=1000, output=500)
    assert reading.usages == (used, replace(used, message_id="b"))
    assert (reading.total_microusd, reading.total_is_new) == (None, False)
    assert reading.size_bytes == file.stat().st_size


def test_only_what_came_later_is_new(file: Path) -> None:
    """A message and a total that were there before are not new, nor is a message that is repeated."""
    before = USER + REQUEST + answer("a") + TOTAL
    reading = read(file, before, since_bytes=len(before))
    assert (reading.usages, reading.total_microusd, reading.total_is_new, reading.cut) == ((), 31_500, False, False)
    reading = read(file, before, answer("a"), answer("b"), since_bytes=len(before))
    assert ([u.message_id for u in reading.usages], reading.total_microusd) == (["b"], 31_500)
    assert not reading.total_is_new
    reading = read(file, before, answer("b"), line("cost-state", totalCostUSD=0.042), since_bytes=len(before))
    assert (reading.total_microusd, reading.total_is_new) == (42_000, True)
    reading = read(file, before, TOTAL, answer("b"), since_bytes=len(before))
    assert not reading.total_is_new, "the total does not have the response that came after it"


def test_a_request_without_a_response_was_cut(file: Path) -> None:
    """A new request after which nothing was said was in flight."""
    assert read(file, USER, REQUEST).cut
    assert read(file, USER, REQUEST, answer("a"), USER, REQUEST, TOTAL).cut
    assert not read(file, USER, REQUEST, answer("a"), USER, TOTAL).cut
    assert not read(file, USER, REQUEST, answer("a", model="<synthetic>")).cut
    assert not read(file, USER, REQUEST, since_bytes=len(USER + REQUEST)).cut


def test_garbage_is_passed_over(file: Path) -> None:
    """What is no JSON object, lacks its shape, is nested without end or torn, takes nothing from the rest."""
    shapes = (
        *(b"\x00\xff garbage\n", b"[1]\n", b"null\n", b"\n", b"[" * 100_000 + b"\n"),
        *(line("assistant", message="text"), line("assistant", message={"id": 1, "usage": [], "model": None})),
        *(
            line("assistant", message={"id": "x"}),
            b'{"type": "cost-state", "totalCostUSD": NaN}\n',
            b'{"type": ["user"]}\n',
        ),
    )
    reading = read(file, *shapes, TOTAL, USER, answer("a"), b'{"type":"assistant","message":{"id":"b"')
    assert (reading.state, reading.total_microusd) == (Transcript.USABLE, 31_500)
    assert [usage.message_id for usage in reading.usages] == ["a"]


def test_a_line_that_was_glued_to_a_torn_one_is_read(file: Path) -> None:
    """The first line of a run that follows a torn one begins where the run's part begins."""
    torn = USER + b'{"type":"assis'
    reading = read(file, torn, answer("a"), since_bytes=len(torn))
    assert [usage.message_id for usage in reading.usages] == ["a"]


def test_subagents_count_when_they_are_new(file: Path) -> None:
    """A subagent's responses are in a file of their own, and belong to the run in whose time they are."""
    agents = file.with_suffix("") / "subagents"
    agents.mkdir(parents=True)
    old = answer("old", timestamp="2026-01-01T00:00:02Z", isSidechain=True)
    new = answer("new", timestamp="2026-01-01T00:00:04Z", isSidechain=True)
    (agents / "agent-1.jsonl").write_bytes(old + new)
    (agents / "agent-2.jsonl").write_bytes(line("api-request", timestamp="2026-01-01T00:00:05Z"))
    later = line("queue-operation", timestamp="2026-01-01T00:00:03Z")
    reading = read(file, USER, later, since_bytes=len(USER))
    assert ([u.message_id for u in reading.usages], reading.cut) == (["new"], True)
    assert [u.message_id for u in read(file, USER, later).usages] == ["old", "new"]
    assert read(file, USER, since_bytes=len(USER)).usages == ()


@pytest.mark.parametrize(
    ("usage", "microusd"),
    [
        (replace(SONNET, input=1000, output=500), 10_500),
        (replace(SONNET, cache_read=10_000), 3_000),
        (replace(SONNET, cache_write_5m=2_000), 7_500),
        (replace(SONNET, cache_write_1h=2_000), 12_000),
        (replace(SONNET, input=10, output=20, cache_read=30, cache_write_5m=40, cache_write_1h=50), 789),
    ],
    ids=["uncached", "cache read", "cached for 5 minutes", "cached for an hour", "all"],
)
def test_a_response_has_its_list_price(usage: Usage, microusd: int) -> None:
    """Each kind of token has its own price; the cached ones are not paid twice."""
    assert transcript.price([usage]) == microusd
    assert transcript.price([usage, usage]) == 2 * microusd


def test_an_unknown_model_has_no_price() -> None:
    """One response without a price leaves the sum unknown; no response costs nothing."""
    assert transcript.price([SONNET, Usage("b", "unheard-of", input=1)]) is None
    assert transcript.price([]) == 0


class Cli:
    """The real CLI, asked once per call, in a home of its own."""

    def __init__(self, server: ScriptedServer, root: Path) -> None:
        self.server, self.root = server, root

    def home(self, name: str) -> Path:
        """Return a configuration directory of its own."""
        return self.root / name

    async def ask(self, name: str, cwd: Path, *arguments: str, model: str = "claude-sonnet-4-5") -> bool:
        """Ask in `cwd`, with the configuration of `name`; return whether it went well."""
        import claude_agent_sdk  # noqa: PLC0415  a second that collecting need not take

        program = str(Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude")
        options = ("--model", model, "--permission-mode", "dontAsk", "--allowedTools", "Bash,Agent")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "CLAUDE_CONFIG_DIR": str(self.home(name)),
            "CLAUDE_CODE_TMPDIR": os.environ["CLAUDE_CODE_TMPDIR"],
            "ANTHROPIC_BASE_URL": self.server.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        }
        done = await anyio.run_process(
            [program, "-p", *options, *arguments, "Begin."], cwd=cwd, env=environment, check=False
        )
        return done.returncode == 0


@pytest.mark.anyio
async def test_the_cli_can_go_on_with_what_is_usable_and_with_nothing_else(tmp_path: Path) -> None:
    """For each way in which a crash leaves a transcript, the CLI resumes it exactly when it is called usable."""
    identity, cwd = str(uuid4()), tmp_path / "cwd"
    cwd.mkdir()
    with ScriptedServer(Script((Scene("", (Reply((Text("One."),)), Reply((Text("Two."),)))),))) as server:
        cli = Cli(server, tmp_path)
        assert await cli.ask("whole", cwd, f"--session-id={identity}")
        whole = transcript.path(cli.home("whole"), cwd, identity)
        lines = whole.read_bytes().splitlines(keepends=True)
        kinds = [json.loads(each)["type"] for each in lines]
        user = lines[kinds.index("user")]
        aside = json.dumps({**json.loads(user), "isSidechain": True}).encode() + b"\n"
        head = b"".join(lines[: kinds.index("user")])
        variants = {
            "empty": (b"", False),
            "metadata": (b"".join(x for x, kind in zip(lines, kinds, strict=True) if "-" in kind), False),
            "torn first line": (user[:80], False),
            "torn after metadata": (head + user[:80], False),
            "a subagent's": (aside, False),
            "first prompt": (user, True),
            "torn first line, then more": (lines[0][:30] + b"".join(lines[1:]), True),
            "torn last line": (b"".join(lines) + user[:80], True),
        }
        went = {}

        async def try_it(name: str, content: bytes) -> None:
            file = cli.home(name) / "projects" / whole.parent.name / whole.name
            file.parent.mkdir(parents=True)
            file.write_bytes(content)
            state = transcript.read(file).state
            went[name] = (state, await cli.ask(name, cwd, f"--resume={identity}"))

        async with anyio.create_task_group() as group:
            for name, (content, _) in variants.items():
                group.start_soon(try_it, name, content)
        states = {True: Transcript.USABLE, False: Transcript.UNUSABLE}
        assert went == {name: (states[usable], usable) for name, (_, usable) in variants.items()}
        assert not await cli.ask("empty", cwd, f"--session-id={identity}"), "an unusable transcript blocks its id"


@pytest.mark.anyio
async def test_a_transcript_is_found_and_priced_as_the_cli_prices_it(tmp_path: Path) -> None:
    """Wherever the worktree is and whatever the model, the responses add up to the CLI's own total."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    homes = {
        "claude-sonnet-4-5": tmp_path / "é_x.Y 😀",
        "claude-opus-4-5": tmp_path / "link",
        "claude-haiku-4-5": tmp_path.joinpath(*("a long name" * 4 for _ in range(6))),
    }
    for cwd in homes.values():
        cwd.mkdir(parents=True, exist_ok=True)
    main = (
        Reply((ToolUse("Agent", {"description": "d", "prompt": "An errand.", "subagent_type": "general-purpose"}),)),
        Reply((ToolUse("Bash", {"command": "true"}),), cache_read_tokens=30_000, cache_write_tokens=5_000),
        Reply((Text("Done."),), input_tokens=3, output_tokens=7),
    )
    errand = (Reply((ToolUse("Bash", {"command": "true"}),)), Reply((Text("Run."),)))
    with ScriptedServer(Script((Scene("An errand.", errand), Scene("", main)))) as server:
        cli = Cli(server, tmp_path)

        async def try_it(model: str, cwd: Path) -> None:
            identity = str(uuid4())
            assert await cli.ask(model, cwd, f"--session-id={identity}", model=model)
            path = transcript.path(cli.home(model), cwd, identity)
            reading = transcript.read(path)
            assert (reading.state, reading.total_is_new, reading.cut) == (Transcript.USABLE, True, False)
            assert len(reading.usages) == 5, "three, and two of the subagent's"
            assert transcript.price(reading.usages) == reading.total_microusd

        async with anyio.create_task_group() as group:
            for model, cwd in homes.items():
                group.start_soon(try_it, model, cwd)
