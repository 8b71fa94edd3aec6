"""How effects are done: what a line's end, an answer or a silence of the outside says, as docs/effects.md has it."""

import json
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest

from runner.effects import Absent, Done, Failed, LookedUp, Outcome, Unknown
from runner.errors import ConfigError
from runner.performers import MAX_CHARS
from runner.processes import find
from runner.store import claims
from runner.store.effects import EffectRow
from tests.documents import table
from tests.worlds import TICKET, World, home_of

pytestmark = pytest.mark.anyio

DOCUMENT = "effects.md"
SECRET = "hunter2-hunter2"
WORDS: dict[type[Outcome | Absent], str] = {Done: "done", Failed: "failed", Unknown: "unknown", Absent: "not there"}


def deploying(tmp_path: Path, line: str, *lines: str) -> World:
    """Return a world in which `line` deploys."""
    config = f"[effects.deploy]\ndescription = 'x'\ncommand = '''{line}'''"
    return World(tmp_path, "\n".join([config, *lines]), {"DEPLOY_TOKEN": SECRET})


async def perform(world: World, kind: str = "deploy", **payload: str) -> Outcome:
    """Perform an effect of a kind."""
    return await world.performers()[kind].perform(world.claimed(kind, **payload))


async def look_up(world: World) -> LookedUp:
    """Look up a deploy."""
    ask = world.performers()["deploy"].look_up
    assert ask is not None
    return await ask(world.claimed("deploy"))


def documented(head: str) -> list[tuple[str, str]]:
    """Return the rows of a table of two columns."""
    return [(first, next(iter(others.values()))) for first, others in table(DOCUMENT, head).items()]


def numbers(text: str) -> list[int]:
    """Return the numbers of a text like `exit code 64 to 66, 70`."""
    found: list[int] = []
    for part in text.removeprefix("exit code ").split(", "):
        first, _, last = part.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    return found


ENDS = dict(documented("how the line ends"))
CODES = {code: word for text, word in ENDS.items() if text.startswith("exit code") for code in numbers(text)}
REST = sorted(set(range(256)) - CODES.keys())


async def test_every_exit_code_means_what_is_documented(tmp_path: Path) -> None:
    """Each exit code that the document names has the outcome that it says, and what is beside them is unknown."""
    world = deploying(tmp_path, 'read code; exit "$(echo "$code" | tr -cd 0-9)"')
    row, performer = world.claimed("deploy", code="1"), world.performers()["deploy"]
    near = {1, 2, 63, 75, 79, 125, 128, 255}
    assert near <= set(REST)
    for code in sorted(CODES.keys() | near):
        outcome = await performer.perform(replace(row, payload={"code": str(code)}))
        assert WORDS[type(outcome)] == CODES.get(code, ENDS["any other exit code"]), code
        assert not isinstance(outcome, Unknown) or not outcome.in_flight


@pytest.mark.parametrize(
    ("line", "end", "said"),
    [
        ("echo begun; kill -SEGV $$", "a signal", "it was ended by signal 11: begun"),
        ("kill -KILL $$", "a signal", "it was ended by signal 9"),
        ("echo begun; sleep 100", "its time limit", "it was ended after its 1 s: begun"),
    ],
)
async def test_a_line_that_is_cut_off_is_unknown(tmp_path: Path, line: str, end: str, said: str) -> None:
    """A line that a signal or its time limit ended is unknown and may still be on its way, and nothing of it lives."""
    outcome = await perform(deploying(tmp_path, line, "timeout_s = 1"))
    assert outcome == Unknown(said)
    assert WORDS[type(outcome)] == ENDS[end]
    assert find(str(home_of(tmp_path).path)) == []


async def test_a_line_that_leaves_children_is_swept(tmp_path: Path) -> None:
    """What a line leaves in the background is ended with it, in whatever session, and its output ends nothing."""
    outcome = await perform(deploying(tmp_path, "sleep 100 & setsid sleep 100 & echo done"))
    assert outcome == Done("done")
    assert find(str(home_of(tmp_path).path)) == []


async def test_the_end_of_much_output_is_the_outcome(tmp_path: Path) -> None:
    """Of 10 MB the last characters are the outcome, and no file of them is left."""
    world = deploying(tmp_path, "yes ää | head -c 10000000; echo; echo deployed to host 7")
    outcome = await perform(world)
    assert isinstance(outcome, Done)
    assert outcome.text.endswith("ää\n\ndeployed to host 7")
    assert outcome.text.startswith("…")
    assert len(outcome.text) == MAX_CHARS
    assert list(home_of(tmp_path).user_home.iterdir()) == []


async def test_stderr_is_no_part_of_the_outcome_but_of_a_failure(tmp_path: Path) -> None:
    """What a line writes to stderr is not what it came to, unless it failed."""
    assert await perform(deploying(tmp_path / "0", "echo out; echo err >&2")) == Done("out")
    refused = await perform(deploying(tmp_path / "64", "echo out; echo err >&2; exit 64"))
    assert refused == Failed("it refused with exit code 64: err")


async def test_an_end_without_a_word_is_told_without_one(tmp_path: Path) -> None:
    """What is told of a line that said nothing ends with how it ended."""
    assert await perform(deploying(tmp_path / "64", "exit 64")) == Failed("it refused with exit code 64")
    assert await perform(deploying(tmp_path / "1", "exit 1")) == Unknown("it ended with exit code 1", in_flight=False)


async def test_a_line_gets_what_is_documented(tmp_path: Path) -> None:
    """A line has the documented variables, those it names, and its input on stdin; it runs outside of worktrees."""
    line = "pwd; cat; echo; env | grep -E '^(IDEMP|TICKET_(ID|RO|BR)|DEPLOY|CI)' | sort"
    world = deploying(tmp_path, line, 'env = ["DEPLOY_TOKEN"]')
    world.place.store.transact(claims.set_tree, TICKET, 1, home="host:/home", branch="ticket/t1", base_sha="0" * 40)
    outcome = await perform(world, version="1.2 ü")
    assert outcome.text.splitlines() == [
        str(home_of(tmp_path).user_home),
        json.dumps({"version": "1.2 ü"}),
        "DEPLOY_TOKEN=[redacted]",
        "IDEMPOTENCY_KEY=folder/t1/1/deploy",
        "TICKET_BRANCH=ticket/t1",
        "TICKET_ID=t1",
        "TICKET_ROUND=1",
    ]
    assert {name.strip("`") for name in table(DOCUMENT, "variable")} == {
        line.partition("=")[0] for line in outcome.text.splitlines()[3:]
    }


async def test_a_line_knows_no_other_secret(tmp_path: Path) -> None:
    """A variable of the daemon that an effect does not name is not in its environment."""
    outcome = await perform(deploying(tmp_path, "env | grep -c DEPLOY_TOKEN; true"))
    assert outcome == Done("0")


@pytest.mark.parametrize(("end", "word"), documented("how the look_up ends"))
async def test_a_look_up_means_what_is_documented(tmp_path: Path, end: str, word: str) -> None:
    """A look-up is believed only when it says yes with 0 or no with 1."""
    codes = numbers(end) if end.startswith("exit code") else [2, 64, 75, 127, 137]
    for code in codes:
        world = deploying(tmp_path / str(code), "true", f"look_up = 'echo $IDEMPOTENCY_KEY; exit {code}'")
        found = await look_up(world)
        assert WORDS[type(found)] == word
        assert isinstance(found, Absent) or "folder/t1/1/deploy" in found.text


async def test_a_look_up_that_hangs_is_unknown(tmp_path: Path) -> None:
    """A look-up that takes longer than the effect may is ended, and says nothing."""
    world = deploying(tmp_path, "true", "look_up = 'sleep 100'", "timeout_s = 1")
    assert await look_up(world) == Unknown("the look-up does not know (it took more than 1 s)")
    assert find(str(home_of(tmp_path).path)) == []


async def do(call: Callable[[EffectRow], Awaitable[object]], row: EffectRow) -> None:
    """Await a call."""
    await call(row)


async def left(world: World, row: EffectRow) -> None:
    """Perform a row whose command says that it is ready, and leave it there."""
    ready = world.directory / "ready"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(do, world.performers()[row.kind].perform, row)
        with anyio.fail_after(20):
            await anyio.Path(ready).read_text()
        tasks.cancel_scope.cancel()


def waiting(tmp_path: Path) -> World:
    """Return a world with two effects that say that they are ready, and wait for a word that they then send."""
    for name in ("ready", "go"):
        os.mkfifo(tmp_path / name)
    line = f"echo > {tmp_path}/ready; echo printed; read word < {tmp_path}/go; echo $word >> {tmp_path}/sent"
    return deploying(tmp_path, line, f"[effects.other]\ndescription = 'x'\ncommand = '{line}'")


async def test_a_cancelled_command_goes_on_and_can_be_waited_for(tmp_path: Path) -> None:
    """A command whose call is cancelled goes on to its own end, which another daemon's wait sees."""
    world = waiting(tmp_path)
    row = world.claimed("deploy")
    await left(world, row)
    await_end = world.performers()["deploy"].await_end
    assert await_end is not None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(do, await_end, row)
        await anyio.Path(tmp_path, "go").write_text("gone\n")
    assert world.sent == ["gone"]
    assert find(str(home_of(tmp_path).path)) == []


async def test_what_a_dead_daemon_left_is_ended_at_its_limit(tmp_path: Path) -> None:
    """A command that outlived its daemon and its limit is ended, and another effect's of the ticket is not."""
    world = waiting(tmp_path)
    rows = [world.claimed("deploy"), world.claimed("other", which="other")]
    for row in rows:
        await left(world, row)
    both = find(str(home_of(tmp_path).path), TICKET, "effect")
    world.began_us += 601_000_000
    for row in rows:
        await_end = world.performers()[row.kind].await_end
        assert await_end is not None
        await await_end(row)
        alive = find(str(home_of(tmp_path).path), TICKET, "effect")
        assert {process.cookie.token for process in alive} < {process.cookie.token for process in both}
        both = alive
    assert (both, world.sent) == ([], [])


async def test_a_comment_is_published_once_and_found(tmp_path: Path) -> None:
    """A comment goes to the source under its key, and is found by it afterwards and not before."""
    world = World(tmp_path)
    row, made = world.claimed("comment", body="hello"), world.performers()
    comment = made["comment"]
    assert comment.look_up is not None
    assert await comment.look_up(row) == Absent()
    done = await comment.perform(row)
    assert isinstance(done, Done)
    assert await anyio.Path(done.text).read_text() == "hello"
    assert await comment.look_up(row) == done
    assert await comment.perform(row) == done
    assert set(made) == {"comment", "report"}


async def test_a_comment_that_cannot_be_written_is_unknown(tmp_path: Path) -> None:
    """A source that fails says nothing of whether the comment is there."""
    world = World(tmp_path)
    (home_of(tmp_path).queue / "comments").touch()
    outcome = await perform(world, "comment", body="hello")
    assert isinstance(outcome, Unknown)


def test_a_variable_that_is_missing_is_named(tmp_path: Path) -> None:
    """An effect that names a variable which the daemon does not have is a mistake of the configuration."""
    world = deploying(tmp_path, "true", 'env = ["DEPLOY_TOKEN", "OTHER"]')
    with pytest.raises(ConfigError, match=r"^effects\.deploy: the daemon's environment has no OTHER$"):
        world.performers()


async def test_a_person_is_told_by_a_line(tmp_path: Path) -> None:
    """A notification is a line that gets what there is to tell on stdin."""
    world = World(tmp_path, "[notify]\ncommand = 'cat'")
    assert await perform(world, "notify", text="held") == Done('{"text": "held"}')


@dataclass
class Outside:
    """A real server, what it was asked, and what it says."""

    answer: Callable[[BaseHTTPRequestHandler], None]
    requests: list[tuple[str, dict[str, str], object]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @contextmanager
    def serve(self) -> Iterator["Outside"]:
        """Serve until the end of the context."""
        outside = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outside.requests.append((self.path, dict(self.headers), json.loads(body)))
                outside.answer(self)

            def log_message(self, *_args: object) -> None:
                """Say nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield self
            finally:
                self.over.set()
                server.shutdown()
                thread.join()


def says(status: int, body: bytes = b"said", length: int | None = None) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return an answer."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.send_header("Location", "/elsewhere")
        handler.end_headers()
        if status not in {204, 304}:
            with suppress(ConnectionError):
                handler.wfile.write(body)

    return answer


def posting(tmp_path: Path, port: int, *lines: str, scheme: str = "http") -> World:
    """Return a world in which a POST deploys."""
    config = f"[effects.deploy]\ndescription = 'x'\nurl = '{scheme}://127.0.0.1:{port}/deployments'"
    return World(tmp_path, "\n".join([config, *lines]), {"DEPLOY_TOKEN": SECRET})


ANSWERS = dict(documented("what comes back"))
SAMPLES = {
    "200 to 299": [200, 201, 202, 204, 299],
    "408, 409, 425, 429": [408, 409, 425, 429],
    "any other status from 400 to 499": [400, 401, 403, 404, 410, 422, 499],
    "any other status": [301, 303, 304, 307, 500, 502, 503, 504, 599],
}


@pytest.mark.parametrize(("answer", "statuses"), SAMPLES.items())
async def test_a_status_means_what_is_documented(tmp_path: Path, answer: str, statuses: list[int]) -> None:
    """Each status has the outcome that the document says, and one request was made for it."""
    said = map(says, statuses)

    def answer_next(handler: BaseHTTPRequestHandler) -> None:
        next(said)(handler)

    with Outside(answer_next).serve() as outside:
        world = posting(tmp_path, outside.port)
        row, performer = world.claimed("deploy"), world.performers()["deploy"]
        for number, status in enumerate(statuses, 1):
            outcome = await performer.perform(row)
            assert WORDS[type(outcome)] == ANSWERS[answer], status
            assert outcome.text == f"HTTP {status}{'' if status in {204, 304} else ': said'}"
            assert len(outside.requests) == number


def test_the_document_has_every_answer() -> None:
    """The table of answers has these rows and no other."""
    others = {"no connection", "no answer, or a connection that is lost"}
    assert ANSWERS.keys() == SAMPLES.keys() | others


async def test_a_post_has_the_key_the_headers_and_the_input(tmp_path: Path) -> None:
    """A POST has its input as JSON, its key, and headers whose values are the daemon's; no outcome shows them."""
    with Outside(lambda handler: says(200, handler.headers["Authorization"].encode())(handler)).serve() as outside:
        world = posting(tmp_path, outside.port, 'headers_env = { Authorization = "DEPLOY_TOKEN" }')
        assert await perform(world, version="1.2") == Done("HTTP 200: [redacted]")
    ((path, headers, body),) = outside.requests
    assert (path, body) == ("/deployments", {"version": "1.2"})
    assert (
        headers.items()
        >= {
            "Idempotency-Key": "folder/t1/1/deploy",
            "Content-Type": "application/json",
            "Authorization": SECRET,
        }.items()
    )


async def test_no_connection_is_a_failure(tmp_path: Path) -> None:
    """A port that nobody listens on, and a server that does not speak TLS, have provably got nothing."""
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        refused = await perform(posting(tmp_path / "refused", unused.getsockname()[1]))
    with Outside(says(200)).serve() as outside:
        no_tls = await perform(posting(tmp_path / "no-tls", outside.port, scheme="https"))
    assert outside.requests == []
    for outcome in (refused, no_tls):
        assert WORDS[type(outcome)] == ANSWERS["no connection"]
        assert outcome.text.startswith("it could not be reached: ConnectError")


def hanging() -> Outside:
    """Return a server that says nothing until it ends."""

    def answer(_handler: BaseHTTPRequestHandler) -> None:
        outside.over.wait(30)

    outside = Outside(answer)
    return outside


async def test_silence_is_unknown(tmp_path: Path) -> None:
    """A server that got the request and says nothing, or drops the connection, may have done it."""
    with Outside(lambda _handler: None).serve() as drops:
        lost = await perform(posting(tmp_path / "lost", drops.port))
    with hanging().serve() as hangs:
        silent = await perform(posting(tmp_path / "silent", hangs.port, "timeout_s = 0.5"))
    for outcome, outside in ((lost, drops), (silent, hangs)):
        assert isinstance(outcome, Unknown)
        assert WORDS[type(outcome)] == ANSWERS["no answer, or a connection that is lost"]
        assert len(outside.requests) == 1


async def test_a_body_says_nothing_against_a_status(tmp_path: Path) -> None:
    """Of a body that is endless the start is kept, and one that is cut off leaves the status as it was."""
    with Outside(says(200, b"x" * 10_000_000)).serve() as outside:
        much = await perform(posting(tmp_path / "much", outside.port))
    assert isinstance(much, Done)
    assert MAX_CHARS // 2 < len(much.text) <= MAX_CHARS
    with Outside(says(201, b"half", length=10)).serve() as outside:
        assert isinstance(await perform(posting(tmp_path / "half", outside.port)), Done)
