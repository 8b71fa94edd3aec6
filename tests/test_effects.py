"""The ledger with a real store and real commands: each effect is done once, whoever is killed or frozen when."""

import os
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from structlog.testing import capture_logs

from runner.agent.words import SERVER
from runner.effects import Done, Outcome, Performer
from runner.events import Name
from runner.processes import ProcessesRemain
from runner.redact import Redactor
from runner.store import LostTicket, decisions, effects, tickets
from runner.store.decisions import NotOpen
from runner.store.effects import MAX_TRIES, EffectRow, EffectState, TooManyEffects, Verdict
from runner.tools import tell, tools_of
from tests.bench import until
from tests.documents import table
from tests.worlds import LIMIT, TICKET, World, config_of, ledger_of
from tickets.ticket import Held, Reason, State

pytestmark = pytest.mark.anyio

KILL = "kill -KILL ${TICKET_RUNNER_COMMAND#* }"  # the daemon that runs the command
SEND = 'echo "$IDEMPOTENCY_KEY" >> SENT'
DEPLOY = f"""
[effects.deploy]
description = "Deploy it."
command = '''
test "$MOMENT" != before || {KILL}
echo sending
{SEND}
test "$MOMENT" != after || {KILL}
echo deployed
'''
"""
LOOK_UP = """look_up = 'grep -xF "$IDEMPOTENCY_KEY" SENT'"""
MOMENTS = {str(Name.EFFECT_CLAIMED): 0, "before": 1, "after": 1, "performed": 1}
"""When the daemon is killed, and how often that was sent then."""
EVERY_MOMENT = pytest.mark.parametrize(("moment", "sent"), MOMENTS.items())


def world_of(tmp_path: Path, *lines: str) -> World:
    """Return a world whose deploy has the given lines in its table."""
    text = "\n".join([DEPLOY, *lines]).replace("SENT", str(tmp_path / "sent"))
    return World(tmp_path, text)


def hold(world: World) -> None:
    """Hold the ticket for its effects."""
    world.place.store.transact(tickets.apply, TICKET, Held(1, Reason.EFFECT, "unknown"))


def state(world: World) -> State:
    """Return the ticket's state."""
    return world.place.store.read(tickets.get, TICKET).ticket.state


@EVERY_MOMENT
async def test_a_killed_effect_that_can_be_looked_up_is_done_once(tmp_path: Path, moment: str, sent: int) -> None:
    """Killed at any moment of a deploy, the next daemon looks it up, and it has been done exactly once."""
    world = world_of(tmp_path, LOOK_UP)
    row = world.want("deploy")
    world.killed_daemon(moment)
    assert world.get(row.key).state is EffectState.CLAIMED
    await world.restart()
    done = world.get(row.key)
    assert (done.state, done.outcome) == (EffectState.DONE, row.key if sent else "sending\ndeployed")
    assert world.sent == [row.key]


@EVERY_MOMENT
async def test_a_killed_effect_that_cannot_be_looked_up_is_never_repeated(
    tmp_path: Path, moment: str, sent: int
) -> None:
    """Without a look-up nobody but a person repeats a deploy whose daemon was killed, and then it is sent once more."""
    world = world_of(tmp_path)
    row = world.want("deploy")
    world.killed_daemon(moment)
    for _ in range(2):
        await world.restart()
        assert world.get(row.key).is_unknown
        assert world.sent == [row.key] * sent
    world.place.store.transact(decisions.settle, row.key, EffectState.WANTED, None, by="me")
    await world.restart()
    assert (world.get(row.key).state, world.get(row.key).attempts) == (EffectState.DONE, 2)
    assert world.sent == [row.key] * (sent + 1)


@EVERY_MOMENT
async def test_a_killed_effect_at_an_idempotent_target_is_repeated_with_its_key(
    tmp_path: Path, moment: str, sent: int
) -> None:
    """Killed at any moment, a deploy whose target honours keys is done again with the same key."""
    world = world_of(tmp_path, "idempotent = true")
    row = world.want("deploy")
    world.killed_daemon(moment)
    await world.restart()
    assert world.get(row.key).state is EffectState.DONE
    assert world.sent == [row.key] * (sent + 1)


@pytest.mark.parametrize("decision", [EffectState.ABANDONED, EffectState.DONE])
async def test_a_person_lets_a_ticket_go_on(tmp_path: Path, decision: EffectState) -> None:
    """A ticket held for an unknown outcome goes on when a person says what became of it, and nothing is sent."""
    world = world_of(tmp_path)
    row = world.want("deploy")
    hold(world)
    world.killed_daemon(str(Name.EFFECT_CLAIMED))
    with pytest.raises(NotOpen, match="is under way, not of unknown outcome: nothing was changed"):
        world.place.store.transact(decisions.settle, row.key, decision, "by hand", by="me")
    await world.restart()
    assert state(world) is State.HELD
    world.place.store.transact(decisions.settle, row.key, decision, "by hand", by="me")
    assert (state(world), world.get(row.key).state) == (State.READY, decision)
    await world.restart()
    assert world.sent == []
    with pytest.raises(NotOpen):
        world.place.store.transact(decisions.settle, row.key, EffectState.WANTED, None, by="me")


def slow_world(tmp_path: Path) -> World:
    """Return a world whose deploy waits for a word before it sends."""
    os.mkfifo(tmp_path / "go")
    world = world_of(tmp_path, LOOK_UP)
    world.text = world.text.replace("\necho sending\n", f"\nread word < {tmp_path}/go\necho sending\n", 1)
    return world


async def say_go(tmp_path: Path) -> None:
    """Let the deploy send."""
    await anyio.Path(tmp_path, "go").write_text("go\n")


async def test_a_command_goes_on_after_its_daemon_and_is_waited_for(tmp_path: Path) -> None:
    """A deploy that outlives its daemon is neither looked up nor repeated before it has ended."""
    world = slow_world(tmp_path)
    row = world.want("deploy")
    world.killed_daemon("before")
    async with world.daemon() as ledger:
        await ledger.settle_dead()
        await say_go(tmp_path)
    assert (world.get(row.key).state, world.sent) == (EffectState.DONE, [row.key])
    assert world.get(row.key).attempts == 1


async def test_a_daemon_that_leaves_waits_for_no_other_s_command(tmp_path: Path) -> None:
    """A daemon that is told to leave while it waits for a dead one's command leaves both to the next."""
    world = slow_world(tmp_path)
    row = world.want("deploy")
    world.killed_daemon("before")
    async with world.daemon() as ledger:
        await ledger.settle_dead()
        ledger.leave()
    assert (world.get(row.key).state, world.get(row.key).outcome, world.sent) == (EffectState.CLAIMED, None, [])
    async with world.daemon() as ledger:
        await ledger.settle_dead()
        await say_go(tmp_path)
    assert (world.get(row.key).state, world.sent) == (EffectState.DONE, [row.key])


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """Return a directory whose commits wait for no disk, where there is one."""
    memory = Path("/dev/shm")  # noqa: S108  the directory in it is ours alone
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as directory:
        yield Path(directory)


def test_a_thousand_claims_at_once_are_each_won_by_one(in_memory: Path) -> None:
    """Two processes that ask for a thousand effects, each at the same instant, send every one once."""
    world = World(in_memory)
    wishes = [world.wish("race", f"race-{number}", number=str(number)) for number in range(1000)]
    world.place.store.transact(lambda tx: [effects.want(tx, wish, limit=None) for wish in wishes])
    (to_b, from_a), (to_a, from_b) = os.pipe(), os.pipe()
    processes = [world.other_daemon("race", to_a, from_a), world.other_daemon("race", to_b, from_b)]
    for descriptor in (to_a, to_b, from_a, from_b):
        os.close(descriptor)
    assert [process.wait() for process in processes] == [0, 0]
    rows = world.place.store.read(effects.effects)
    assert sorted(world.sent) == sorted(row.key for row in rows)
    assert {(row.state, row.attempts) for row in rows} == {(EffectState.CLAIMED, 1)}
    assert len({row.claimed_by for row in rows}) == 2


async def test_a_frozen_owner_that_wakes_up_is_the_only_one(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """An owner frozen between its claim and its call, past every lease, sends once when it wakes up."""
    world = world_of(tmp_path, LOOK_UP, "idempotent = true")
    row = world.want("deploy")
    process = world.other_daemon("frozen")
    request.addfinalizer(process.kill)
    _, status = await anyio.to_thread.run_sync(os.waitpid, process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    async with world.daemon("elsewhere:/home") as ledger:
        await ledger.settle_dead()
        await ledger.perform_due()
        await ledger.settled(row.key)
    assert (world.get(row.key).state, world.sent) == (EffectState.CLAIMED, [])
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    assert (world.get(row.key).state, world.sent) == (EffectState.DONE, [row.key])


async def test_an_effect_waits_for_approval(tmp_path: Path) -> None:
    """An effect that needs a person's yes is not performed before it, and once after it."""
    world = world_of(tmp_path)
    async with world.daemon() as ledger:
        row, verdict = await ledger.request(world.wish("deploy", approval=True), token=1)
        assert (verdict, row.waits_for_approval) == (Verdict.NEW, True)
    await world.restart()
    assert world.sent == []
    world.place.store.transact(decisions.approve, row.key, by="me")
    await world.restart()
    await world.restart()
    assert (world.get(row.key).state, world.sent) == (EffectState.DONE, [row.key])


async def test_a_repeated_wish_gets_the_first_outcome(tmp_path: Path) -> None:
    """The same key, and the same content under another name, get the first outcome; other content is refused."""
    world = world_of(tmp_path)
    async with world.daemon() as ledger:
        first, verdict = await ledger.request(world.wish("deploy", version="1"), token=1)
        assert (first.state, first.outcome, verdict) == (EffectState.DONE, "sending\ndeployed", Verdict.NEW)
        assert await ledger.request(world.wish("deploy", version="1"), token=1) == (first, Verdict.SAME)
        assert await ledger.request(world.wish("deploy", "again", version="1"), token=1) == (first, Verdict.TWIN)
        assert await ledger.request(world.wish("deploy", version="2"), token=1) == (first, Verdict.CONFLICT)
    assert world.sent == [first.key]


async def test_an_agent_s_tools_and_keys_are_as_documented(tmp_path: Path) -> None:
    """The model sees the tools that the document names, and a key ends in tool and operation, or in one word."""
    world = world_of(tmp_path)
    row = world.place.store.read(tickets.get, TICKET)
    async with world.daemon() as ledger:
        tools = tools_of(
            world.place.run(TICKET),
            config=config_of(tmp_path, world.text),
            store=world.place.store,
            ledger=ledger,
            row=row,
            redactor=Redactor.of([]),
        )
        call = {tool.name: tool.call for tool in tools}
        for operation in ("plan", "comment"):
            await call["comment"]({"operation": operation, "body": operation})
        await call["deploy"]({})
    documented = {name.strip("`").replace("NAME", "deploy") for name in table("effects.md", "tool")}
    assert {f"mcp__{SERVER}__{name}" for name in call} == documented
    keys = {found.key for found in world.place.store.read(effects.effects)}
    assert keys == {f"folder/t1/1/{end}" for end in ("comment.plan", "comment", "deploy")}


async def test_a_ticket_has_so_many_effects(tmp_path: Path) -> None:
    """A ticket that has its number of effects gets no other, and asks for those that it has as before."""
    world = world_of(tmp_path)
    async with world.daemon() as ledger:
        for number in range(LIMIT):
            await ledger.request(world.wish("deploy", f"deploy-{number}", version=str(number)), token=1)
        with pytest.raises(TooManyEffects, match=r"limits\.effects"):
            await ledger.request(world.wish("deploy", "more", version="more"), token=1)
        _, verdict = await ledger.request(world.wish("deploy", "deploy-0", version="0"), token=1)
        assert verdict is Verdict.SAME
    assert len(world.sent) == LIMIT


async def test_a_claim_that_is_lost_wants_nothing(tmp_path: Path) -> None:
    """A wish of a claim that is not the ticket's present one is refused, and nothing of it is saved."""
    world = world_of(tmp_path)
    async with world.daemon() as ledger:
        with pytest.raises(LostTicket):
            await ledger.request(world.wish("deploy"), token=2)
    assert world.place.store.read(effects.effects) == []


async def test_a_failed_effect_may_be_tried_again(tmp_path: Path) -> None:
    """What provably did not happen is performed when it is asked for again, under the same key."""
    flag = tmp_path / "flag"
    world = world_of(tmp_path)
    world.text = world.text.replace("\necho deployed", f"\ntest -e {flag} || exit 69\necho deployed")
    async with world.daemon() as ledger:
        row, _ = await ledger.request(world.wish("deploy"), token=1)
        assert row.state is EffectState.FAILED
        flag.touch()
        row, verdict = await ledger.request(world.wish("deploy"), token=1)
    assert (row.state, verdict, row.attempts) == (EffectState.DONE, Verdict.NEW, 2)


async def test_an_effect_that_fails_again_and_again_is_given_up(tmp_path: Path) -> None:
    """What has failed its number of times is not tried again, and its agent is told so."""
    world = world_of(tmp_path)
    world.text = world.text.replace("\necho deployed", "\nexit 69")
    async with world.daemon() as ledger:
        for tries in range(1, MAX_TRIES + 1):
            row, verdict = await ledger.request(world.wish("deploy"), token=1)
            assert (row.state, row.attempts, verdict) == (EffectState.FAILED, tries, Verdict.NEW)
            assert ("is not tried again" in tell(row, verdict).text) == (tries == MAX_TRIES)
        again, verdict = await ledger.request(world.wish("deploy"), token=1)
    assert (again.state, again.attempts, verdict) == (EffectState.FAILED, MAX_TRIES, Verdict.SAME)
    assert len(world.sent) == MAX_TRIES


async def test_the_approval_of_a_try_is_none_of_the_next(tmp_path: Path) -> None:
    """An approved effect that failed and is asked for again waits for a person once more."""
    world = world_of(tmp_path)
    world.text = world.text.replace("\necho deployed", "\nexit 69")
    async with world.daemon() as ledger:
        row, _ = await ledger.request(world.wish("deploy", approval=True), token=1)
        world.place.store.transact(decisions.approve, row.key, by="me")
        await ledger.settled(row.key)
        assert world.get(row.key).state is EffectState.FAILED
        row, verdict = await ledger.request(world.wish("deploy", approval=True), token=1)
        assert (row.waits_for_approval, verdict) == (True, Verdict.NEW)
    assert world.sent == [row.key]


async def test_a_try_that_failed_says_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    """A call that may have arrived stays unknown when its repetition did not, and a restart repeats neither."""
    world = world_of(tmp_path, "idempotent = true")
    tries = tmp_path / "tries"
    world.text = world.text.replace("\necho deployed", f"\ntest -e {tries} && exit 69\ntouch {tries}; exit 1")
    row = world.want("deploy")
    await world.restart()
    await world.restart()
    assert (world.get(row.key).is_unknown, world.get(row.key).attempts) == (True, 2)


@pytest.mark.parametrize("error", [ProcessesRemain(TICKET, (1,)), PermissionError("they do not end")])
async def test_processes_that_do_not_end_are_a_person_s(tmp_path: Path, error: Exception) -> None:
    """A dead daemon's command that cannot be ended leaves the effect unknown, and the daemon alive."""
    world = world_of(tmp_path, "idempotent = true")
    row = world.claimed("deploy")

    async def await_end(_row: EffectRow) -> None:
        raise error

    made = {"deploy": replace(world.performers()["deploy"], await_end=await_end)}
    async with anyio.create_task_group() as tasks:
        await ledger_of(world.place.store, world.place.start(), made, tasks).settle_dead()
    assert world.get(row.key).is_unknown
    assert "do not end" in (world.get(row.key).outcome or "")
    assert world.sent == []


def rename(world: World, before: str, after: str) -> None:
    """Take the ledger's table away from the store, which then does not answer, or give it back."""
    with closing(sqlite3.connect(world.directory / "store.sqlite3")) as connection:
        connection.execute(f"ALTER TABLE {before} RENAME TO {after}")


async def until_tried_in_vain(logs: list[MutableMapping[str, object]]) -> None:
    """Wait until the store has twice not answered."""
    await until(lambda: [entry["event"] for entry in logs].count("store.unavailable") > 1)


def sending(world: World, also: Callable[[], None]) -> Performer:
    """Return a performer that sends, and does something else then."""

    async def perform(row: EffectRow) -> Outcome:
        with world.sent_file.open("a") as file:
            file.write(f"{row.key}\n")
        also()
        return Done("sent")

    return Performer(perform)


@pytest.mark.parametrize("moment", ["claim", "outcome"])
async def test_a_store_that_does_not_answer_is_waited_for(tmp_path: Path, moment: str) -> None:
    """An effect whose claim or outcome the store does not take is done once and saved as soon as it takes it."""
    world = World(tmp_path)
    row = world.want("deploy")

    def fail() -> None:
        rename(world, "effect", "gone")

    made = {"deploy": sending(world, fail if moment == "outcome" else lambda: None)}
    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            ledger = ledger_of(world.place.store, world.place.start(), made, tasks)
            await ledger.perform_due()
            if moment == "claim":
                fail()
            await until_tried_in_vain(logs)
            assert ledger.is_busy
            rename(world, "gone", "effect")
    assert (world.get(row.key).state, world.get(row.key).outcome) == (EffectState.DONE, "sent")
    assert world.sent == [row.key]


async def test_a_start_waits_for_the_store(tmp_path: Path) -> None:
    """What dead daemons left is found out as soon as the store answers, however late after the start."""
    world = world_of(tmp_path)
    row = world.claimed("deploy")
    rename(world, "effect", "gone")
    with capture_logs() as logs:
        async with world.daemon() as ledger, anyio.create_task_group() as tasks:
            tasks.start_soon(ledger.settle_dead)
            await until_tried_in_vain(logs)
            rename(world, "gone", "effect")
    assert world.get(row.key).is_unknown


async def test_a_daemon_that_leaves_waits_for_no_store(tmp_path: Path) -> None:
    """A daemon that leaves while the store does not answer ends, and the next one finds out what it performed."""
    world = world_of(tmp_path, LOOK_UP)
    row = world.want("deploy")
    made = {"deploy": sending(world, lambda: rename(world, "effect", "gone"))}
    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            ledger = ledger_of(world.place.store, world.place.start(), made, tasks)
            await ledger.perform_due()
            await until_tried_in_vain(logs)
            ledger.leave()
            await ledger.settle_dead()
    rename(world, "gone", "effect")
    assert (world.get(row.key).state, world.get(row.key).outcome) == (EffectState.CLAIMED, None)
    await world.restart()
    assert (world.get(row.key).state, world.sent) == (EffectState.DONE, [row.key])


async def test_a_defect_in_one_effect_ends_no_other(tmp_path: Path) -> None:
    """Whatever goes wrong in the ledger with one effect, the daemon lives and its other effects are done."""
    world = World(tmp_path)
    broken, row = world.want("broken"), world.want("deploy")
    with closing(sqlite3.connect(world.directory / "store.sqlite3")) as connection:
        when = "BEFORE UPDATE ON effect WHEN NEW.kind = 'broken'"
        connection.execute(f"CREATE TRIGGER refuse {when} BEGIN SELECT RAISE(ABORT, 'no'); END")
    made = {kind: sending(world, lambda: None) for kind in ("broken", "deploy")}
    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            await ledger_of(world.place.store, world.place.start(), made, tasks).perform_due()
    assert [(entry["event"], entry["key"]) for entry in logs] == [("effect.failed", broken.key)]
    assert (world.get(row.key).state, world.sent) == (EffectState.DONE, [row.key])


@pytest.mark.parametrize(("is_claimed", "why"), [(True, "no effect"), (False, "it was not tried: no effect")])
async def test_an_effect_that_nobody_can_perform_any_more_is_a_person_s(
    tmp_path: Path, is_claimed: bool, why: str
) -> None:
    """What was wanted or begun and is configured no more holds its ticket and is settled by a person."""
    world = World(tmp_path)
    row = world.claimed("deploy") if is_claimed else world.want("deploy")
    async with world.daemon() as ledger:
        (left,) = await ledger.settle_ticket(TICKET)
    assert (left.is_unknown, left.outcome) == (True, f"{why} deploy is configured any more")
    hold(world)
    world.place.store.transact(decisions.settle, row.key, EffectState.ABANDONED, None, by="me")
    assert state(world) is State.READY


async def test_a_notification_of_another_daemon_is_left_to_it(tmp_path: Path) -> None:
    """A daemon that tells nobody leaves what another wants to tell to it."""
    world = World(tmp_path)
    row = world.want("notify", text="held")
    await world.restart()
    assert world.get(row.key).state is EffectState.WANTED
