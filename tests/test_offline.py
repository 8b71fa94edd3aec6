"""The scripted Messages API, over HTTP and under the real Claude Code."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path

import anyio
import httpx
import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultError,
    ResultMessage,
    SystemMessage,
    query,
)
from hypothesis import given
from hypothesis import strategies as st

from runner.offline import (
    Failure,
    Reply,
    Scene,
    Script,
    ScriptedServer,
    Text,
    ToolUse,
    conversation_text,
    final_text_of,
    wire,
)
from runner.offline.prices import cost_microusd
from tests.documents import document, table

DEADLINE_S = 20.0
MODEL = "claude-sonnet-4-5"
ECHO = ToolUse("Bash", {"command": "echo one"})
LOOK = Reply((Text("I look."), ECHO))
DONE = Reply((Text("Done."),))

Json = dict[str, object]


def one_scene(*turns: Reply | Failure, match: str = "") -> Script:
    """Return a script of one scene."""
    return Script((Scene(match, turns),))


def user(text: str) -> Json:
    """Return a user message."""
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def tool_result(call_id: str, text: str) -> Json:
    """Return the message that answers a tool call."""
    content = [{"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": text}]}]
    return {"role": "user", "content": content}


def ask(server: ScriptedServer, *messages: Json, session: str = "s", **more: object) -> httpx.Response:
    """Send one request that is not streamed."""
    body = {
        "model": MODEL,
        "max_tokens": 100,
        "messages": messages,
        "metadata": {"user_id": json.dumps({"session_id": session})},
        **more,
    }
    return httpx.post(f"{server.url}/v1/messages?beta=true", json=body)


def said(server: ScriptedServer, *messages: Json, session: str = "s") -> Json:
    """Return the assistant message that a conversation gets, as the client keeps it."""
    answer = ask(server, *messages, session=session).raise_for_status().json()
    return {"role": "assistant", "content": answer["content"]}


def text_of(message: Json) -> str:
    """Return the first text of a message."""
    content = message["content"]
    assert isinstance(content, list)
    return str(next(block["text"] for block in content if block["type"] == "text"))


def test_continues_where_the_conversation_stands() -> None:
    """The next turn follows from the replies in the messages, whoever served them and whatever stands between."""
    script = one_scene(Failure(529), LOOK, DONE, DONE, Reply((Text("Again."),)))
    with ScriptedServer(script) as server:
        assert ask(server, user("go")).status_code == 529
        look = said(server, user("go"))
        call = server.script.scenes[0].call_ids(1)[0]
        so_far = [user("go"), look, tool_result(call, "one")]
    with ScriptedServer(script) as server:
        done = said(server, *so_far)
        so_far += [done, user("more"), {"role": "assistant", "content": "No response requested."}, user("more")]
        assert [text_of(look), text_of(done), text_of(said(server, *so_far))] == ["I look.", "Done.", "Done."]
        so_far += [done, user("again")]
        assert text_of(said(server, *so_far)) == "Again."
        so_far += [{"role": "assistant", "content": "Again."}, user("and again")]
        assert text_of(said(server, *so_far)) == "Nothing is left to do."
        assert [served.turn for served in server.served] == [2, 3, 4, 5]


def test_a_switched_script_goes_on_after_the_turns_that_it_shares() -> None:
    """A new script continues after turns that were said as it has them, and begins where it has others."""
    with ScriptedServer(one_scene(LOOK, Reply(DONE.content, hang=True))) as server:
        look = said(server, user("go"))
        so_far = [user("go"), look, tool_result(server.script.scenes[0].call_ids(0)[0], "one")]
        server.script = one_scene(LOOK, DONE)
        assert text_of(said(server, *so_far)) == "Done."
        server.script = one_scene(Reply((Text("Other."), ECHO)), DONE)
        assert text_of(said(server, *so_far)) == "Other."


def test_the_first_scene_that_matches_what_the_user_said_is_played() -> None:
    """Scenes are chosen by user text alone, not by tool results or by the reminders of Claude Code."""
    script = Script((Scene("apple", (Reply((Text("A"),)),)), Scene("pear", (Reply((Text("P"),)),))))
    with ScriptedServer(script) as server:
        assert text_of(said(server, user("a pear"))) == "P"
        assert text_of(said(server, user("an apple and a pear"))) == "A"
        hidden = [user("<system-reminder>\napple"), tool_result("toolu_x", "apple"), user("a plum")]
        assert text_of(said(server, *hidden)) == "Nothing is left to do."
        assert [served.scene for served in server.served] == ["pear", "apple", None]
        assert server.served[-1].last_user_texts == ("a plum",)


def test_what_leaves_no_trace_is_counted_for_each_conversation() -> None:
    """A failure is served as often as it says to every session, then the turn after it."""
    failure = Failure(529, times=2, headers={"retry-after": "7"}, message="busy")
    with ScriptedServer(one_scene(failure, DONE)) as server:
        answers = [ask(server, user("go"), session=session) for session in ("a", "a", "b", "a", "b", "b")]
        assert [answer.status_code for answer in answers] == [529, 529, 529, 200, 529, 200]
        assert answers[0].headers["retry-after"] == "7"
        error = answers[0].json()
        assert (error["type"], error["error"]) == ("error", {"type": "overloaded_error", "message": "busy"})
        assert [served.complete for served in server.served] == [False, False, False, True, False, True]
        server.script = one_scene(Failure(401, kind="authentication_error", times=None), DONE)
        assert {ask(server, user("go"), session="c").status_code for _ in range(4)} == {401}


def test_a_stream_has_the_published_shape() -> None:
    """A streamed reply opens, fills and closes each block, and ends with its stop reason and its usage."""
    long = ToolUse("Write", {"file_path": "a", "content": "x" * 1000})
    with ScriptedServer(one_scene(Reply((Text("Hello."), long), cache_read_tokens=7))) as server:
        lines = ask(server, user("go"), stream=True).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    kinds = [event["type"] for event in events]
    assert [line.removeprefix("event: ") for line in lines if line.startswith("event: ")] == kinds
    assert re.fullmatch(
        "message_start (content_block_start (content_block_delta )+content_block_stop ){2}message_delta message_stop",
        " ".join(kinds),
    )
    pieces = [event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == long.input
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["output_tokens"] == 500
    assert events[-2]["usage"]["cache_read_input_tokens"] == 7
    assert server.served[0].complete


@pytest.mark.parametrize("stream", [True, False])
def test_a_cut_reply_drops_the_connection_and_costs_nothing(stream: bool) -> None:
    """A cut reply breaks the response off, is not complete, and the next request gets the next turn."""
    with ScriptedServer(one_scene(replace(LOOK, cut=True), DONE)) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            ask(server, user("go"), stream=stream)
        assert text_of(said(server, user("go"))) == "Done."
        assert [(served.status, served.complete) for served in server.served] == [(200, False), (200, True)]
        assert server.cost_microusd == 10_500
        assert server.served[0].begun_microusd == (3_015 if stream else 0)


def test_a_garbled_reply_has_a_frame_that_is_not_json() -> None:
    """A garbled reply ends with half a frame, and is not complete."""
    with ScriptedServer(one_scene(replace(LOOK, garbage=True))) as server:
        last = ask(server, user("go"), stream=True).text.rstrip().rpartition("data: ")[2]
        with pytest.raises(ValueError, match="Unterminated string"):
            json.loads(last)
        assert not server.served[0].complete


@pytest.mark.parametrize(
    "turn",
    [replace(LOOK, hang=True), replace(DONE, delay_s=600), replace(DONE, pace_s=600)],
    ids=["hangs", "waits", "is paced"],
)
def test_a_client_that_leaves_makes_a_reply_a_cut_one(turn: Reply) -> None:
    """A reply that hangs, waits or is paced ends when its client leaves, and does not count."""
    with ScriptedServer(one_scene(turn)) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.url}/v1/messages",
                json={"model": MODEL, "messages": [user("go")], "stream": True},
                timeout=0.1,
            )
        server.wait_until(lambda served: bool(served) and served[0].over, DEADLINE_S)
        assert [served.complete for served in server.served] == [False]
        assert server.cost_microusd == 0


def test_ends_while_a_client_hangs() -> None:
    """Leaving the server ends what it still serves, so that no test waits for its own mistake."""
    broken = threading.Event()

    def hang() -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            ask(server, user("go"), stream=True)
        broken.set()

    with ScriptedServer(one_scene(replace(LOOK, hang=True))) as server:
        client = threading.Thread(target=hang)
        client.start()
        server.wait_for(1, DEADLINE_S)
    client.join(DEADLINE_S)
    assert broken.is_set()


def test_waits_end_with_what_was_seen() -> None:
    """A wait that is not fulfilled says what was served instead."""
    with ScriptedServer(one_scene(DONE)) as server:
        said(server, user("go"))
        server.wait_for(1, DEADLINE_S)
        with pytest.raises(TimeoutError, match=r"\('', 0, 200, True\)"):
            server.wait_for(2, 0.01)


def test_everything_but_messages_is_not_found() -> None:
    """Other paths get a 404 in the API's shape, a request that is none gets a 400, and neither is recorded."""
    with ScriptedServer(one_scene(DONE)) as server:
        assert httpx.head(f"{server.url}/api/hello").status_code == 404
        assert (
            httpx.post(f"{server.url}/v1/messages/count_tokens", json={}).json()["error"]["type"] == "not_found_error"
        )
        assert httpx.post(f"{server.url}/v1/messages", content=b"{").status_code == 400
        assert httpx.post(f"{server.url}/v1/messages", json={"messages": []}).status_code == 400
        assert server.served == []


def test_a_request_for_a_title_is_an_aside() -> None:
    """A request that names the session takes no turn of the script and is marked, with its cost."""
    with ScriptedServer(one_scene(DONE)) as server:
        title = json.loads(text_of(said(server, user("<session>\ngo\n</session>\n\nWrite the title"))))
        assert title["title"]
        assert text_of(said(server, user("go"))) == "Done."
        assert [(one.aside, one.scene, one.cost_microusd) for one in server.served] == [
            (True, None, 450),
            (False, "", 10_500),
        ]


def test_records_each_request_as_it_ends(tmp_path: Path) -> None:
    """The record holds what `served` holds, a line for each request."""
    record = tmp_path / "record.jsonl"
    with ScriptedServer(one_scene(Failure(500), DONE), record=record) as server:
        ask(server, user("go"))
        ask(server, user("go"))
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert lines == [json.loads(json.dumps(asdict(served))) for served in server.served]
    assert [(line["status"], line["session_id"]) for line in lines] == [(500, "s"), (200, "s")]


def test_flattens_what_the_model_was_told() -> None:
    """The helpers give user texts and tool results, all of them or the last, and nothing that the model said."""
    body = {
        "model": MODEL,
        "messages": [
            user("first"),
            {"role": "assistant", "content": "mine"},
            tool_result("toolu_x", "res"),
            user("last"),
        ],
    }
    parsed = json.loads(json.dumps(body))
    assert conversation_text(parsed) == "first\nres\nlast"
    assert final_text_of(parsed) == "res\nlast"


texts = st.text(max_size=20)
calls = st.builds(ToolUse, texts, st.dictionaries(texts, st.one_of(texts, st.integers(), st.booleans(), st.none())))
replies = st.builds(
    Reply,
    content=st.lists(st.one_of(st.builds(Text, texts), calls), min_size=1, max_size=3).map(tuple),
    input_tokens=st.integers(0, 10**6),
    cut=st.booleans(),
    times=st.none() | st.integers(1, 9),
)
failures = st.builds(Failure, st.integers(400, 599), headers=st.dictionaries(texts, texts))
turns = st.lists(st.one_of(replies, failures), max_size=4).map(tuple)
scripts = st.builds(Script, st.lists(st.builds(Scene, texts, turns), max_size=3).map(tuple))


@given(scripts)
def test_a_script_survives_json(script: Script) -> None:
    """A script that is written as JSON and read back is equal, with the same tool call ids."""
    back = Script.from_json(script.to_json())
    assert back == script
    for ours, theirs in zip(script.scenes, back.scenes, strict=True):
        assert [ours.call_ids(i) for i in range(len(ours.turns))] == [
            theirs.call_ids(i) for i in range(len(theirs.turns))
        ]


def turn(value: object) -> str:
    """Return a script of one turn as JSON."""
    return json.dumps({"scenes": [{"match": "", "turns": [value]}]})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Invalid JSON: EOF while parsing an object at line 1 column 1"),
        ("[]", "must be an object: {...}"),
        ('{"scenes": {}}', "scenes: must be a list: [...]"),
        (turn({"content": [{"text": "a"}], "hnag": True}), "scenes[0].turns[0].hnag: unknown key, did you mean hang?"),
        (turn({"content": [{"text": "a"}], "x": True}), "scenes[0].turns[0].x: unknown key"),
        (turn({}), "scenes[0].turns[0].content: is required"),
        (turn(3), "scenes[0].turns[0]: must be an object: {...}"),
        (turn({"status": "x"}), "scenes[0].turns[0].status: must be a whole number"),
        (turn({"content": [{"text": 1}]}), "scenes[0].turns[0].content[0].text: must be text in quotes"),
        (
            turn({"content": []}),
            "scenes[0].turns[0]: a reply needs content: without it no conversation shows that it was said",
        ),
        (
            turn({"content": [{"text": "a"}], "cut": True, "hang": True}),
            "scenes[0].turns[0]: a reply is hung, cut or garbled, not two of them",
        ),
    ],
)
def test_refuses_a_script_that_it_would_misplay(text: str, why: str) -> None:
    """All that is wrong with a script is told, each with its key; a part is told of as what it is meant for."""
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        Script.from_json(text)


def test_the_command_names_the_file_of_a_script_that_is_wrong(tmp_path: Path) -> None:
    """Each mistake has a line with the file and the key, and ends the command with 64."""
    script = tmp_path / "night.json"
    script.write_text(turn({"content": [{"name": "Bash"}], "hnag": True}))
    command = [sys.executable, "-m", "runner.offline", "--port", "0", "--script", str(script)]
    ended = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (ended.returncode, ended.stdout) == (64, "")
    assert ended.stderr.splitlines() == [
        "python -m runner.offline: night.json: scenes[0].turns[0].content[0].input: is required",
        "python -m runner.offline: night.json: scenes[0].turns[0].hnag: unknown key, did you mean hang?",
    ]


@pytest.mark.parametrize(
    ("head", "part"),
    [
        ("of a scene", Scene),
        ("of words", Text),
        ("of a call", ToolUse),
        ("of a reply", Reply),
        ("of a failure", Failure),
    ],
)
def test_the_document_has_every_key_of_a_script(head: str, part: type) -> None:
    """docs/offline.md tells each key of each part, in the order in which it is written, and which have to be there."""
    told = table("offline.md", head)
    assert list(told) == [f"`{each.name}`" for each in fields(part)]
    for each in fields(part):
        is_required = each.default is MISSING and each.default_factory is MISSING
        assert (told[f"`{each.name}`"]["without it"] == "required") is is_required, each.name


def test_the_documented_script_is_one() -> None:
    """The example of docs/offline.md is a script that can be played."""
    example = document("offline.md").partition("```json\n")[2].partition("```")[0]
    assert [len(scene.turns) for scene in Script.from_json(example).scenes] == [3, 1]


def test_prices_are_whole_microdollars() -> None:
    """The published example costs what it should, and the longest family that fits a model gives its price."""
    assert cost_microusd(MODEL, input_tokens=1000, output_tokens=500) == 10_500
    assert cost_microusd("claude-opus-5-5", input_tokens=1000, output_tokens=500) == 14_000
    assert cost_microusd("claude-opus-5", input_tokens=1000, output_tokens=500) == 17_500
    assert cost_microusd("claude-haiku-5-5", input_tokens=5, output_tokens=0) == 1


def options(server: ScriptedServer, tmp_path: Path, **more: str) -> ClaudeAgentOptions:
    """Return options under which Claude Code knows this server only."""
    (tmp_path / "work").mkdir(exist_ok=True)
    env = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": "offline",
        "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return ClaudeAgentOptions(
        cwd=tmp_path / "work",
        env=env | more,
        model=MODEL,
        permission_mode="dontAsk",
        tools=["Bash", "Write"],
        allowed_tools=["Bash", "Write"],
        setting_sources=[],
        strict_mcp_config=True,
    )


async def converse(prompt: str, how: ClaudeAgentOptions) -> tuple[ResultMessage, list[SystemMessage]]:
    """Run Claude Code once; return its result, raised or not, and what it said of itself."""
    result: ResultMessage | None = None
    notices: list[SystemMessage] = []
    try:
        async for message in query(prompt=prompt, options=how):
            if isinstance(message, ResultMessage):
                result = message
            elif isinstance(message, SystemMessage):
                notices.append(message)
    except ResultError:
        pass
    assert result is not None
    return result, notices


@pytest.mark.anyio
async def test_claude_code_plays_a_script_over_two_runs(tmp_path: Path) -> None:
    """Claude Code runs the tools of a script through a failure, resumes where it stood, and its total is our sum."""
    write = ToolUse("Write", {"file_path": str(tmp_path / "work" / "b.txt"), "content": "x" * 900})
    script = one_scene(
        Reply((Text("I begin."), ToolUse("Bash", {"command": "echo made > a.txt; cat a.txt"}))),
        Failure(529),
        Reply((write,), cache_read_tokens=10_000, cache_write_tokens=2_000),
        DONE,
        Reply((Text("Second run."),), pace_s=0.001),
    )
    with ScriptedServer(script) as server:
        how = options(server, tmp_path)
        first, notices = await converse("go", how)
        assert (first.result, first.is_error) == ("Done.", False)
        assert [notice.data["error_status"] for notice in notices if notice.subtype == "api_retry"] == [529]
        assert round((first.total_cost_usd or 0) * 1e6) == server.cost_microusd == 42_000
        second, _ = await converse("go on", replace(how, resume=first.session_id))
        assert (second.result, second.session_id) == ("Second run.", first.session_id)
        assert round((second.total_cost_usd or 0) * 1e6) == server.cost_microusd == 52_500
        assert (tmp_path / "work" / "a.txt").read_text() == "made\n"
        assert (tmp_path / "work" / "b.txt").stat().st_size == 900
        assert [(one.turn, one.complete) for one in server.served] == [
            (0, True),
            (1, False),
            (2, True),
            (3, True),
            (4, True),
        ]
        assert {(one.session_id, one.model, one.tools, one.aside) for one in server.served} == {
            (first.session_id, MODEL, ("Bash", "Write"), False)
        }
        assert server.served[-1].last_user_texts == ("go on",)
        assert "made" in final_text_of(server.served[2].body)


@pytest.mark.anyio
async def test_claude_code_recovers_from_broken_streams(tmp_path: Path) -> None:
    """Claude Code asks again after a cut and a garbled stream, and counts what they announced."""
    with ScriptedServer(
        one_scene(replace(DONE, cut=True, pace_s=0.05), replace(DONE, garbage=True), LOOK, DONE)
    ) as server:
        result, _ = await converse("go", options(server, tmp_path))
        assert result.result == "Done."
        begun = sum(one.begun_microusd for one in server.served if not one.complete)
        assert (server.cost_microusd, begun) == (21_000, 6_030)
        assert round((result.total_cost_usd or 0) * 1e6) == server.cost_microusd + begun


@pytest.mark.anyio
async def test_claude_code_gives_up_on_an_overload_and_leaves_a_hung_stream(tmp_path: Path) -> None:
    """An overload that lasts is an api_error after the retries; a hung stream ends with an interruption."""
    script = Script((Scene("busy", (Failure(529, times=None),)), Scene("", (replace(DONE, hang=True),))))
    with ScriptedServer(script) as server:
        how = options(server, tmp_path, CLAUDE_CODE_MAX_RETRIES="1")
        busy, _ = await converse("busy", how)
        assert (busy.terminal_reason, busy.api_error_status, len(server.served)) == ("api_error", 529, 2)
        async with ClaudeSDKClient(how) as client:
            await client.query("go")
            await anyio.to_thread.run_sync(
                server.wait_until, lambda served: len(served) > 2 and served[2].begun_microusd, 20
            )
            await client.interrupt()
            ends = [message async for message in client.receive_response() if isinstance(message, ResultMessage)]
        assert [end.terminal_reason for end in ends] == ["aborted_streaming"]
        assert not server.served[2].complete


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "api_error"),
        (529, "overloaded_error"),
    ],
)
def test_a_failure_has_the_type_of_its_status(status: int, kind: str) -> None:
    """A scripted status is sent with the type that the API gives it, unless the script says another."""
    assert json.loads(wire.error(Failure(status)))["error"]["type"] == kind
    assert json.loads(wire.error(Failure(status, kind="odd_error")))["error"]["type"] == "odd_error"


@pytest.mark.parametrize("port", ["99999", "-1", "x"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    """A port that cannot be is a mistake in the command's words, told without a traceback."""
    command = [sys.executable, "-m", "runner.offline", "--port", port]
    ended = subprocess.run(command, capture_output=True, check=False, text=True)
    assert ended.returncode == 2
    assert f"{port!r} is no port: a number from 0 to 65535" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    """`python -m runner.offline` says where it listens and what to export, and Ctrl-C ends it with 0."""
    script = tmp_path / "script.json"
    script.write_text(one_scene(DONE).to_json())
    record = tmp_path / "record.jsonl"
    command = [sys.executable, "-m", "runner.offline", "--port", "0", "--script", str(script), "--record", str(record)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            exported = next(line for line in process.stdout if line.startswith("export ANTHROPIC_BASE_URL="))
            url = exported.strip().partition("=")[2]
            answer = httpx.post(f"{url}/v1/messages", json={"model": MODEL, "messages": [user("go")]})
            assert answer.json()["content"] == [{"type": "text", "text": "Done."}]
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(DEADLINE_S) == 0
            assert len(record.read_text().splitlines()) == 1
        finally:
            process.kill()
