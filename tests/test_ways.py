"""Every way a run can end: the table, and those ways that no other test makes happen."""

import ast
import mmap
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.agent import ApiRetried, Options, RateLimited
from runner.events import Name
from runner.offline import Failure, Reply, Scene, Script, ScriptedServer, Text, conversation_text
from runner.outcome import RULES, Outcome, StoppedBy, Trouble, classify
from runner.redact import MARK, Redactor
from runner.session import session_id
from tests.bench import CLOCKS, SPEAKER, Bench, cli, say, use
from tests.daemons import Site, bash
from tests.documents import document
from tests.endings import API_ERRORS, ERROR_SUBTYPES, TERMINAL_REASONS
from tests.ways import WAYS, Proof, Way, markdown

TESTS = Path(__file__).parent
TOO_LONG = "prompt is too long: 210000 tokens > 200000 maximum"
NO_PAIR = "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_0."


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site whose model has nothing to say yet."""
    with Site.at(tmp_path) as site:
        yield site


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose model has nothing to say yet."""
    with ScriptedServer(Script(())) as server:
        yield Bench(server, tmp_path)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_each_way_has_its_outcome(way: Way) -> None:
    """However a way shows, it has the outcome that its row says."""
    assert {classify(end) for end in way.ends} <= {way.outcome}
    assert way.ends or way.outcome is Outcome.ORPHANED, "which nobody sees"


def test_the_document_has_every_way() -> None:
    """The document's table of ways is what `python -m tests.ways` prints."""
    assert markdown() in document("outcomes.md"), "put into docs/outcomes.md what `python -m tests.ways` prints"
    assert len({way.name for way in WAYS}) == len(WAYS)


def test_each_driven_way_names_a_test_that_runs() -> None:
    """The test that a row names is there and is not skipped."""
    named = {way.by for way in WAYS if way.proof is Proof.DRIVEN}
    found = {f"{file}::{name}" for file in {by.partition("::")[0] for by in named} for name in _tests(file)}
    assert named - found == set()
    assert [way.by for way in WAYS if way.proof is Proof.RECORDED and not (TESTS / way.by).exists()] == []


def _tests(file: str) -> list[str]:
    """Return the tests of a file that no mark keeps from running."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    marks = [
        ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node)
    ]
    assert not re.search("skip|xfail", "".join(marks))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [
        each.name for each in functions if not re.search("skip|xfail", "".join(map(ast.unparse, each.decorator_list)))
    ]


def test_every_value_of_a_closed_set_has_a_way() -> None:
    """Each outcome, each reason of ours to stop a run and each trouble is in a row."""
    ends = [end for way in WAYS for end in way.ends]
    assert {way.outcome for way in WAYS} == set(RULES)
    assert {end.stopped_by for end in ends} == {None, *StoppedBy}
    assert {end.trouble for end in ends} == {None, *Trouble}


def test_every_value_that_the_cli_knows_has_a_way() -> None:
    """Each reason, subtype and word that the shipped CLI lists is in a row, and so is one that nobody knows."""
    ends = [end for way in WAYS for end in way.ends]
    results = [end.result for end in ends if end.result is not None]
    assert {result.terminal_reason for result in results} == {None, "unheard_of", *TERMINAL_REASONS}
    assert {result.subtype for result in results} == {"success", "unheard_of", *ERROR_SUBTYPES}
    assert {end.api_error for end in ends} == {None, "unheard_of", *API_ERRORS}


def test_the_lists_are_those_of_the_shipped_cli() -> None:
    """The program holds the lists word by word; with another version there may be a new way to end."""
    with cli().open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program:
        for known in (TERMINAL_REASONS[:15], TERMINAL_REASONS[15:], ERROR_SUBTYPES, API_ERRORS):
            listed = "[" + ",".join(f'"{value}"' for value in known) + "]"
            assert program.find(listed.encode()) >= 0, f"the CLI's list is another one: {known}"


LIMIT = {
    "anthropic-ratelimit-unified-status": "rejected",
    "anthropic-ratelimit-unified-representative-claim": "five_hour",
}
CUT, GARBAGE = (Reply((Text("part " * 100),), cut=cut, garbage=not cut, times=None) for cut in (True, False))


def refused(status: int, kind: str = "invalid_request_error", *, message: str = "", **headers: str) -> Failure:
    """Return a refusal that a ticket meets again and again."""
    return Failure(status, kind, times=None, message=message, headers=headers)


def stops(reason: str) -> tuple[Reply, ...]:
    """Return answers that all end for a reason which is none of the content's."""
    return tuple(Reply((Text(f"Part {n}."),), stop_reason=reason) for n in range(9))


proof = pytest.mark.proof


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("faults", "seen", "outcome"),
    [
        pytest.param(
            [refused(429, **{"retry-after": "600"})], ("api_error", "rate_limit", 429), "weather", marks=proof
        ),
        pytest.param([refused(503)], ("api_error", "server_error", 503), "weather", marks=proof),
        pytest.param([refused(408)], ("api_error", "unknown", 408), "weather", marks=proof),
        pytest.param([CUT], ("api_error", "server_error", None), "weather", id="cut"),
        pytest.param([GARBAGE], ("api_error", "unknown", None), "weather", id="garbage", marks=proof),
        pytest.param([refused(402)], ("api_error", "unknown", 402), "unauthorized", marks=proof),
        pytest.param([refused(403)], ("api_error", "authentication_failed", 403), "unauthorized", marks=proof),
        pytest.param(
            [refused(400, message="Your credit balance is too low to access the Anthropic API.")],
            ("api_error", "billing_error", 400),
            "unauthorized",
            id="credit",
            marks=proof,
        ),
        pytest.param([refused(404, "not_found_error")], ("api_error", "model_not_found", 404), "failed", marks=proof),
        pytest.param([refused(422)], ("api_error", "unknown", 422), "failed", marks=proof),
        pytest.param(stops("max_tokens"), ("api_error", "max_output_tokens", None), "failed", id="long", marks=proof),
        pytest.param(stops("tool_use"), ("malformed_tool_use_exhausted", None, None), "failed", id="malformed"),
        pytest.param(
            stops("refusal"), ("api_error", "invalid_request", None), "session_over", id="refusal", marks=proof
        ),
        pytest.param(
            [refused(400, message=TOO_LONG)],
            ("prompt_too_long", "invalid_request", 400),
            "session_over",
            id="prompt too long",
        ),
    ],
)
async def test_a_request_that_fails_for_good(
    bench: Bench, faults: list[Reply | Failure], seen: tuple[str, str | None, int | None], outcome: str
) -> None:
    """In the middle of a conversation each failure shows as the table has it, and a session that is kept goes on."""
    bench.plays(use("Bash", command="echo marigold"), *faults)
    options = bench.options()
    end = await bench.run(options)
    assert end.result is not None
    assert (end.result.terminal_reason, end.api_error, end.result.api_error_status) == seen
    assert (classify(end), end.confirmed, end.exit_code) == (Outcome(outcome), True, 1)
    if not RULES[classify(end)].closes_session:
        await goes_on(bench, options)


async def goes_on(bench: Bench, options: Options) -> None:
    """Resume a session whose model has got well, and see that it knows what was done."""
    bench.plays(use("Bash", command="echo marigold"), say("Done."))
    end = await bench.run(replace(options, resume=True), "Go on.")
    assert classify(end) is Outcome.FINISHED, end
    told = conversation_text(bench.server.served[-1].body)
    assert "marigold" in told
    assert "Go on." in told


@proof
@pytest.mark.anyio
async def test_a_request_that_fails_before_a_word(bench: Bench) -> None:
    """A model that is not there is no attempt while it never said anything."""
    bench.plays(refused(404, "not_found_error"))
    end = await bench.run(bench.options())
    assert (classify(end), end.confirmed, end.api_error) == (Outcome.UNEXPLAINED, False, "model_not_found")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("last", "why"),
    [
        pytest.param(say(""), "the model's last answer is empty", id="empty"),
        pytest.param(
            *(
                Reply((Text("I search."),), stop_reason="pause_turn"),
                "the model's last answer has more to come (pause_turn)",
            ),
            id="paused",
        ),
    ],
)
async def test_an_unfinished_answer_is_no_end_of_the_work(bench: Bench, last: Reply, why: str) -> None:
    """An answer that is empty or has more to come is no end of the work, and its session goes on."""
    bench.plays(use("Bash", command="echo marigold"), last)
    options = bench.options()
    end = await bench.run(options)
    assert end.result is not None
    assert (end.result.subtype, end.result.is_error, end.result.terminal_reason) == ("success", False, "completed")
    assert (classify(end), end.confirmed, end.exit_code, end.result.unfinished) == (Outcome.FAILED, True, 0, why)
    await goes_on(bench, options)


@proof
@pytest.mark.anyio
async def test_an_empty_answer_is_no_end_of_the_work(bench: Bench) -> None:
    """A model that answers with nothing, also when it is asked again, has not done the work."""
    bench.plays(say(""))
    end = await bench.run(bench.options())
    assert end.result is not None
    assert (end.result.subtype, end.result.is_error, end.result.terminal_reason) == ("success", False, "completed")
    assert (classify(end), end.confirmed, len(bench.server.served)) == (Outcome.UNEXPLAINED, False, 2)


@pytest.mark.anyio
async def test_a_subscriptions_limit_says_when_it_ends(bench: Bench) -> None:
    """A limit of a subscription is met once, in the middle of a run, and the time when it ends is known."""
    at_s = int(time.time()) + 7200
    reset = {"anthropic-ratelimit-unified-reset": str(at_s)}
    bench.plays(bash("true"), refused(429, "rate_limit_error", **LIMIT, **reset))
    end = await bench.run(bench.options(ANTHROPIC_API_KEY="", CLAUDE_CODE_OAUTH_TOKEN="sk-ant-oat01-none"))
    assert (classify(end), end.reset_at_us) == (Outcome.WEATHER, at_s * 1_000_000)
    assert bench.heard(RateLimited)[-1:] == [RateLimited("rejected", "five_hour", at_s * 1_000_000)]
    assert len(bench.server.served) == 2


@proof
@pytest.mark.anyio
@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://nowhere.invalid", None], ids=["refused", "host", "slow"])
async def test_an_api_that_cannot_be_reached_is_weather(bench: Bench, url: str | None) -> None:
    """Nobody who listens, a name that is none and an answer that does not come are weather."""
    bench.plays(Reply((Text("Late."),), delay_s=60, times=None))
    where = url or bench.server.url
    end = await bench.run(bench.options(ANTHROPIC_BASE_URL=where, API_TIMEOUT_MS="1000"))
    assert end.result is not None
    assert (classify(end), end.api_error, end.result.api_error_status) == (Outcome.WEATHER, "server_error", None)


@proof
@pytest.mark.anyio
async def test_a_context_that_is_full_ends_its_session(bench: Bench) -> None:
    """A context that may not be made shorter, and one that is full again each time it was, close the session."""
    bench.plays(Reply(use("Bash", command="echo one").content, input_tokens=199_000), say("Done."))
    end = await bench.run(replace(bench.options(DISABLE_COMPACT="1"), max_budget_microusd=100_000_000))
    assert end.result is not None
    assert (classify(end), end.result.terminal_reason) == (Outcome.SESSION_OVER, "blocking_limit")
    bench.server.script = Script(
        (
            Scene("detailed summary", (say("<summary>Much was done.</summary>"),)),
            Scene("", (use("Bash", command="echo one"), refused(400, message=TOO_LONG))),
        )
    )
    end = await bench.run(replace(bench.options(), max_budget_microusd=100_000_000))
    assert end.result is not None
    assert (classify(end), end.result.terminal_reason) == (Outcome.SESSION_OVER, "rapid_refill_breaker")


PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c02"
    "0000000b4944415478da6364f80f00010501012718e3660000000049454e44ae426082"
)


@proof
@pytest.mark.anyio
async def test_a_refused_image_is_left_out_by_a_resume(bench: Bench) -> None:
    """An image that the API refuses is in no later request of its session, which goes on."""
    options = bench.options()
    (options.cwd / "pixel.png").write_bytes(PIXEL)
    message = "messages.0.content.1.image.source.base64.data: image exceeds 5 MB maximum"
    bench.plays(use("Read", file_path="pixel.png"), refused(400, message=message))
    end = await bench.run(options)
    assert end.result is not None
    assert (classify(end), end.result.terminal_reason) == (Outcome.FAILED, "image_error")
    assert any("base64" in str(served.body["messages"]) for served in bench.server.served)
    bench.plays(use("Read", file_path="pixel.png"), say("Done."))
    assert classify(await bench.run(replace(options, resume=True))) is Outcome.FINISHED
    assert "base64" not in str(bench.server.served[-1].body["messages"])


@pytest.mark.anyio
async def test_garbage_among_the_frames_ends_the_run_and_not_the_session(bench: Bench) -> None:
    """A line that is no frame, in the middle of a conversation, ends the run, and its session goes on."""
    bench.plays(use("Bash", command="echo marigold"), say("Done."))
    garbled = bench.stub("garbled", '#!/bin/sh\nCLI "$@" | sed -u \'/tool_result/i {"type": secret\'\n')
    options = bench.options(real_cli=garbled)
    end = await bench.run(options)
    assert (classify(end), end.trouble, end.result) == (Outcome.FAILED, Trouble.PROTOCOL, None)
    assert "secret" not in end.detail
    await goes_on(bench, replace(bench.options(), session_id=options.session_id))


WORD = {"id": "m", "model": "a model", "role": "assistant", "content": [{"type": "text", "text": "So be it."}]}
SAID = {"type": "assistant", "message": WORD, "session_id": "s", "uuid": "u"}


@pytest.mark.anyio
async def test_an_end_without_a_result_is_no_success(bench: Bench) -> None:
    """A CLI that ends well after a word of the model, and has no result, has failed."""
    end = await bench.run(bench.options(real_cli=bench.speaker(SAID)))
    assert (classify(end), end.confirmed, end.exit_code, end.result) == (Outcome.FAILED, True, 0, None)


@proof
@pytest.mark.anyio
async def test_a_frame_that_is_too_large_ends_the_run(bench: Bench) -> None:
    """A frame of more than 64 MiB is not read to its end."""
    huge = f"print(json.dumps({SAID!r}))\nprint('{{\"type\": \"' + 'x' * 2**26)\n"
    end = await bench.run(bench.options(real_cli=bench.stub("huge", SPEAKER + huge)))
    assert (classify(end), end.trouble) == (Outcome.FAILED, Trouble.PROTOCOL)


@pytest.mark.anyio
async def test_a_cli_without_memory_to_start_is_a_failed_start(bench: Bench) -> None:
    """A limit on its memory that is too low ends the CLI by a signal, before the model was asked."""
    limited = bench.stub("limited", '#!/bin/sh\nulimit -d 150000\nexec CLI "$@"\n')
    end = await bench.run(bench.options(real_cli=limited))
    assert classify(end) is Outcome.NEVER_STARTED, end
    assert end.exit_code is not None
    assert (end.exit_code < 0, end.result, bench.server.served) == (True, None, [])


@proof
@pytest.mark.anyio
async def test_a_cli_that_dies_at_its_start_is_unexplained(bench: Bench) -> None:
    """The CLI refuses a new session with an id that is in use, and what it said is kept for a person."""
    bench.plays(say("Done."))
    options = bench.options()
    assert classify(await bench.run(options)) is Outcome.FINISHED
    end = await bench.run(options)
    assert (classify(end), end.exit_code, end.result) == (Outcome.UNEXPLAINED, 1, None)
    assert "already in use" in end.detail


@proof
@pytest.mark.anyio
async def test_a_first_answer_that_hangs_is_a_failed_start(bench: Bench) -> None:
    """A response that stops before its first word is silence, and no attempt."""
    bench.plays(Reply((Text("part " * 100),), hang=True, times=None))
    end = await bench.run(bench.options(), clocks=replace(CLOCKS, silence_s=3))
    assert (classify(end), end.stopped_by) == (Outcome.NEVER_STARTED, StoppedBy.SILENCE)


@proof
@pytest.mark.anyio
@pytest.mark.timeout(150)
async def test_the_sdk_gives_up_on_a_silent_start_by_itself(bench: Bench) -> None:
    """Without a limit of ours the SDK waits for a minute for the CLI's first word, and then fails."""
    silent = bench.stub("silent", "#!/bin/sh\nexec sleep 600\n")
    end = await bench.run(bench.options(real_cli=silent), clocks=replace(CLOCKS, start_s=120))
    assert (classify(end), end.trouble, end.stopped_by) == (Outcome.UNEXPLAINED, Trouble.OTHER, None)


@pytest.mark.anyio
async def test_words_of_the_api_are_kept_without_secrets_and_bounded(bench: Bench) -> None:
    """What the CLI says of a retry and of a limit is a short line without secrets when it is heard."""
    retry = {"type": "system", "subtype": "api_retry", "error": "x " * 97 + "sk-0123456789", "attempt": 1}
    info = {"status": "rejected", "rateLimitType": "sk-0123456789" * 100}
    limit = {"type": "rate_limit_event", "rate_limit_info": info, "uuid": "u", "session_id": "s"}
    unheard_of = limit | {"rate_limit_info": {"status": "rejected", "resetsAt": 99_999_999_999_999}}
    options = bench.options(real_cli=bench.speaker(retry, limit, unheard_of))
    await bench.run(replace(options, redact=Redactor.of(["sk-0123456789"]).text))
    (heard,), (limited, odd) = bench.heard(ApiRetried), bench.heard(RateLimited)
    assert heard.error == "x " * 97 + MARK[:6]
    assert limited.kind is not None
    assert (len(limited.kind), limited.kind.startswith(MARK)) == (200, True)
    assert (odd.kind, odd.reset_at_us) == (None, None), "a time that is in no calendar"


@proof
@pytest.mark.timeout(400)
def test_a_storm_meets_one_layer_of_retries_and_then_ours(site: Site) -> None:
    """The CLI tries as often again as it was told, then the queue waits without a process, at no attempt."""
    agent = {"base_url": site.server.url, "model": "claude-sonnet-4-5", "max_retries": 2}
    site.configure(agent=agent)
    site.plays(bash("echo one > one.txt"), Failure(529, times=None))
    site.add("t")
    assert site.start(once=True).ends(120) == 1
    assert [call.status for call in site.calls] == [200, 529, 529, 529]
    assert site.names("t").count(Name.AGENT_RETRIED) == 2
    pause = site.status().pause
    assert pause is not None
    assert pause.until_us is not None
    assert pause.until_us - pause.since_us >= 30_000_000
    assert site.start(once=True).ends(120) == 1, "the wait is in the database, so that another daemon keeps it"
    assert len(site.calls) == 4
    site.plays(bash("echo one > one.txt"), say("Done."))
    site.let_the_wait_pass("t")
    assert site.start(once=True).ends(120) == 0
    shown = site.show("t")
    assert shown.kinds == [("first", "weather"), ("resumed", "finished")]
    assert (shown.ticket.attempts, len(site.calls), len(shown.sessions)) == (0, 5, 1)


_IS_WRITTEN = "until grep -qs 'kill -9' \"$CLAUDE_CONFIG_DIR\"/projects/*/*.jsonl; do sleep 0.05; done"
"""The call that says so is in the transcript, up to 0.1 s after it was received: a kill before that loses it, and the
same model calls again."""


@proof
@pytest.mark.timeout(300)
def test_a_ticket_goes_on_after_each_way(site: Site) -> None:
    """A broken session is closed and a new one told of it; after a stall, a kill and a refused key the same goes on."""
    begun, done = bash("echo one > one.txt"), say("Done.")
    broken: dict[str, tuple[Reply | Failure, str]] = {
        "key": (Failure(401, "authentication_error"), "unauthorized"),
        "unpaired": (refused(400, message=NO_PAIR), "session_over"),
        "silent": (Reply((Text("part " * 100),), hang=True), "stalled"),
        "endless": (bash("sleep 600"), "stalled"),
        "killed": (bash(f"{_IS_WRITTEN}; kill -9 $PPID; sleep 600"), "killed"),
    }
    scenes = (Scene(f"for-{name}", (begun, fault, done)) for name, (fault, _) in broken.items())
    site.server.script = Script((Scene("an earlier session worked on the ticket", (done,)), *scenes))
    site.configure(concurrency=5, clocks={"silence_s": 20, "tool_silence_s": 20})
    for name in broken:
        site.add(name, f"for-{name}")
    site.start()
    site.wait_for(Name.TICKET_PUT_BACK, "key")
    pause = site.status().pause
    assert pause is not None
    assert (pause.by, pause.until_us, "HTTP 401" in pause.note) == ("key", None, True)
    assert site.show("key").kinds == [("first", "unauthorized")]
    site.tell("resume")
    for name, (_, outcome) in broken.items():
        site.wait_for(Name.TICKET_FINISHED, name)
        shown = site.show(name)
        assert [run.outcome for run in shown.runs] == [outcome, "finished"], name
        causes = [event.payload["cause"] for event in site.log(name) if event.name is Name.TICKET_PUT_BACK]
        assert causes == ["start" if name == "key" else "attempt"], name
        closed = [session.closed_reason for session in shown.sessions]
        assert closed == (["session_over", None] if name == "unpaired" else [None]), name
    second = session_id("folder", "unpaired", 2)
    told = conversation_text(next(call for call in site.calls if call.session_id == second).body)
    assert "an earlier session worked on the ticket" in told
    assert "Changed and not committed:\n- one.txt" in told
