"""What reaches the outside when a real agent asks for it and its daemon is killed, and what the agent is told."""

import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pydantic import BaseModel

from runner.events import Name
from runner.offline import Reply, Text, ToolUse, conversation_text, final_text_of
from runner.store import Store, effects
from runner.store.effects import EffectRow
from tests.daemons import Site, bash, say, wait_until_gone

pytestmark = pytest.mark.timeout(180)  # several runs, each with the real CLI

KILL = "kill -KILL ${TICKET_RUNNER_COMMAND#* }"
"""Kills the daemon that runs the command."""
SECRET = "to-deploy-with-1234"


class Notice(BaseModel):
    """What the notification command was given."""

    ticket: str
    state: str
    reason: str
    text: str


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site whose model has nothing to say yet."""
    with Site.at(tmp_path) as site:
        yield site


def calls(*tools: tuple[str, Mapping[str, str]]) -> Reply:
    """Return a reply that calls tools of ours, all at once."""
    return Reply(tuple(ToolUse(f"mcp__runner__{name}", dict(given)) for name, given in tools))


def again(*tools: tuple[str, Mapping[str, str]]) -> Reply:
    """Return a reply that makes the same calls once more."""
    return Reply((Text("Once more."), *calls(*tools).content))


def comment(operation: str, body: str) -> tuple[str, Mapping[str, str]]:
    """Return a call that publishes a comment."""
    return "comment", {"operation": operation, "body": body}


def deploy(operation: str) -> tuple[str, Mapping[str, str]]:
    """Return a call that deploys."""
    return "deploy", {"operation": operation, "version": operation}


def effects_of(site: Site, ticket: str) -> dict[str, EffectRow]:
    """Return what the agent of a ticket asked for, by operation."""
    store = Store.open(site.config.database_url, read_only=True)
    try:
        rows = store.read(effects.effects, ticket=ticket)
    finally:
        store.close()
    return {row.operation: row for row in rows if row.kind not in effects.OURS}


def comments(site: Site, ticket: str) -> list[str]:
    """Return the comments on a ticket, in the order of their keys."""
    files = (site.config.queue_directory / "comments" / ticket).glob("*")
    return [file.read_text() for file in sorted(files)]


def told(site: Site, turn: int, scene: str = "") -> str:
    """Return what the model was told last before it said its turn: results of tools, and prompts."""
    asked = [call for call in site.calls if (call.turn, call.scene) == (turn, scene)]
    return re.sub(r"\n*<system-reminder>.*?</system-reminder>\n*", "", final_text_of(asked[-1].body), flags=re.DOTALL)


def lines(file: Path) -> list[str]:
    """Return the lines of what was sent outside so far."""
    return file.read_text().splitlines() if file.exists() else []


def test_what_a_ticket_s_end_wants_is_there_once(site: Site) -> None:
    """Killed as a ticket is held or done, or as the comment on it is claimed, each is commented and notified once."""
    sent = site.root / "sent"
    site.plays(say("Nothing to do."), bash("echo one > one.txt"), say("There it is."))
    site.add("t")
    site.dies_at(Name.TICKET_HELD)
    site.dies_at(Name.EFFECT_CLAIMED)
    assert comments(site, "t") == []
    assert site.works_once() == 3
    (held,) = comments(site, "t")
    assert held.startswith("Held (no_change).")
    assert "nothing differs from the base\nNothing to do.\n" in held
    assert (site.config.queue_directory / "held/t.md").exists()

    site.configure(notify={"command": f"cat >> {sent}; echo >> {sent}"})
    site.tell("release", "t")
    site.dies_at(Name.EFFECT_WANTED)
    assert (comments(site, "t"), lines(sent)) == ([held], [])
    assert site.works_once() == 3
    assert comments(site, "t") == [held, held]
    site.tell("retry", "t")
    site.dies_at(Name.TICKET_FINISHED)
    assert (len(comments(site, "t")), len(lines(sent))) == (2, 1)
    for _ in range(2):
        assert site.works_once() == 3
    done = "Done on ticket/t.\n\nThere it is."
    assert comments(site, "t") == [held, held, done]
    notices = [Notice.model_validate_json(line) for line in lines(sent)]
    said = [(it.ticket, it.state, it.reason, it.text) for it in notices]
    assert said == [("t", "held", "no_change", held), ("t", "done", "", done)]
    assert (site.config.queue_directory / "done/t.md").exists()


def test_a_comment_is_there_once_however_often_it_is_asked_for(site: Site) -> None:
    """Asked for again in a session, after a kill and in a fresh session, a comment is there once, with one outcome."""
    plan, body = ("plan", "First I look.")
    site.configure(limits={"effects": 2})
    site.plays(
        calls(comment(plan, body)),
        calls(
            comment(plan, body),
            comment(plan, "Other words."),
            comment("twin", body),
            comment("second", "More."),
            comment("third", "Too much."),
        ),
        bash("touch in-tool; sleep 30"),
    )
    site.add("t")
    daemon = site.start()
    site.waits_in_tool("t", "in-tool")
    there = site.config.queue_directory / "comments/t/folder%2Ft%2F1%2Fcomment.plan.md"
    assert told(site, 1) == f"Done: {there}"
    first, refused, twin, second, too_many = told(site, 2).splitlines()
    assert first == twin == f"Done before, and not repeated: {there}"
    assert refused.startswith("Refused: `comment.plan` was asked for before with other content, and is done")
    assert str(there) in refused
    assert second.startswith("Done: ")
    assert "has its 2 effects already" in too_many
    daemon.kill()
    wait_until_gone(site.processes("t"))
    site.plays(
        again(comment(plan, body)),
        bash("touch again; sleep 30"),
        later=(calls(comment(plan, body), comment(plan, "Others.")), bash("rm again in-tool; date > date"), say("Ok.")),
    )
    site.start()
    site.waits_in_tool("t", "again")
    assert told(site, 1) == first
    site.tell("retry", "t", "--fresh")
    site.wait_for(Name.TICKET_FINISHED, "t")
    assert told(site, 1, "an earlier session worked on the ticket") == f"{first}\n{refused}"
    assert f"- comment.plan: done ({there})" in told(site, 0, "an earlier session worked on the ticket")
    assert [each.generation for each in site.show("t").sessions] == [1, 2]
    assert {name: (it.state, it.attempts) for name, it in effects_of(site, "t").items()} == {
        "comment.plan": ("done", 1),
        "comment.second": ("done", 1),
    }
    site.wait(lambda: len(comments(site, "t")) == 3, "the report")
    assert comments(site, "t") == [body, "More.", "Done on ticket/t.\n\nOk."]


def killable(site: Site, **more: object) -> Path:
    """Let agents deploy: `during` takes until the file `go` is there, `after` kills its daemon; return what is sent."""
    sent, doing, go = site.root / "sent", site.root / "doing", site.root / "go"
    sent.touch()
    command = (
        f"case $IDEMPOTENCY_KEY in *.during) touch {doing}; for i in $(seq 300); do test -e {go} && break; sleep 0.1;"
        f" done;; esac; echo $IDEMPOTENCY_KEY >> {sent};"
        f" case $IDEMPOTENCY_KEY in *.after) test $(grep -c after {sent}) -gt 1 || {KILL};; esac; echo deployed"
    )
    deploys = {"description": "Deploy.", "command": command, **more}
    site.configure(**{"effects.deploy": deploys, "effects.deploy.input": {"version": "Which."}})
    return sent


def kill_a_deploy(site: Site, moment: str, *first: Reply) -> None:
    """Let a daemon be killed before, during or after the call of a deploy, for which its agent asks after `first`.

    A CLI that has lost its daemon may ask its model once more before it ends; nothing is left to be said then.
    """
    site.plays(*first, calls(deploy(moment)))
    daemon = site.start(once=True, die_at=Name.EFFECT_CLAIMED if moment == "before" else None)
    if moment == "during":
        site.wait((site.root / "doing").exists, "the deploy")
        daemon.kill()
        assert [each for each in site.processes("t") if each.cookie.kind == "effect"], "it outlives its daemon"
    assert daemon.ends() == -signal.SIGKILL, daemon.said()
    wait_until_gone([each for each in site.processes("t") if each.cookie.kind == "agent"])


def key_of(operation: str) -> str:
    """Return the key of a deploy."""
    return f"folder/t/1/deploy.{operation}"


def prompts(site: Site) -> str:
    """Return all that the model was told in words so far."""
    return "\n".join(text for call in site.calls for text in call.last_user_texts)


def test_a_killed_deploy_that_can_be_looked_up_is_done_once(site: Site) -> None:
    """Killed before, during and after a deploy, the session goes on by itself, and the outside has each once."""
    look_up = f"grep -xF $IDEMPOTENCY_KEY {site.root}/sent"
    sent = killable(site, timeout_s=8, look_up=look_up)
    moments = ("before", "during", "after")
    site.add("t")
    kill_a_deploy(site, "before")
    assert lines(sent) == []
    kill_a_deploy(site, "during", again(deploy("before")))
    assert lines(sent) == [key_of("before")]
    killable(site, timeout_s=120, look_up=look_up)  # or, when all is slow, it is ended before it may go on
    site.plays(again(deploy("during")), calls(deploy("after")))
    daemon = site.start(once=True)
    site.wait(lambda: site.names("t").count(Name.TICKET_CLAIMED) == 3, "the next claim")
    assert lines(sent) == [key_of("before")]
    (site.root / "go").touch()
    assert daemon.ends() == -signal.SIGKILL, daemon.said()
    wait_until_gone(site.processes("t"))
    assert lines(sent) == [key_of(moment) for moment in moments]
    site.plays(again(deploy("after")), bash("echo one > one.txt"), say("Deployed."))
    assert site.works_once() == 0
    assert lines(sent) == [key_of(moment) for moment in moments]
    shown = site.show("t")
    assert (shown.ticket.state, shown.ticket.attempts, len(shown.sessions)) == ("done", 0, 1)
    outcomes = {"deploy.before": "deployed", "deploy.during": key_of("during"), "deploy.after": key_of("after")}
    assert {name: (it.state, it.outcome) for name, it in effects_of(site, "t").items()} == {
        operation: ("done", outcome) for operation, outcome in outcomes.items()
    }
    for operation, outcome in outcomes.items():
        assert f"- {operation}: done ({outcome})" in prompts(site)
        assert f"Done before, and not repeated: {outcome}" in conversation_text(site.calls[-1].body)


def test_a_killed_deploy_that_cannot_be_looked_up_waits_for_a_person(site: Site) -> None:
    """Killed before, during and after a deploy, nobody but a person repeats it, and the agent is told their word."""
    sent = killable(site, timeout_s=30)
    decisions = {"before": ["--retry"], "during": ["--done", "I saw it."], "after": ["--abandon"]}
    site.add("t")
    there: list[str] = []
    before: list[Reply] = []
    for moment, decision in decisions.items():
        kill_a_deploy(site, moment, *before)
        before = [again(deploy(moment))]
        if moment == "during":
            (site.root / "go").touch()
        there += [key_of(moment)] if moment != "before" else []
        for code in (4, 3, 3):
            assert site.works_once() == code
            assert lines(sent) == there
        assert effects_of(site, "t")[f"deploy.{moment}"].is_unknown
        if moment == "before":
            asked = len(site.calls)
            shown = site.show("t")
            assert (shown.ticket.state, shown.ticket.reason) == ("held", "effect")
            assert key_of(moment) in shown.why
            assert site.tell("effects", "t").splitlines()[1].split()[:3] == [key_of(moment), "deploy", "unknown"]
            assert "1 unknown" in site.tell("status")
            for verb in ("release", "retry"):
                assert "`ticket-runner effects t`, then `settle KEY`" in site.tell(verb, "t", code=1)
            assert len(site.calls) == asked
            there.append(key_of(moment))
        site.tell("settle", key_of(moment), *decision)
    site.plays(*before, bash("echo one > one.txt"), say("Deployed."))
    assert site.works_once() == 0
    assert lines(sent) == there
    assert {name: (it.state, it.attempts) for name, it in effects_of(site, "t").items()} == {
        "deploy.before": ("done", 2),
        "deploy.during": ("done", 1),
        "deploy.after": ("abandoned", 1),
    }
    for line in ("before: done (deployed)", "during: done (I saw it.)", "after: abandoned"):
        assert f"- deploy.{line}" in prompts(site)
    heard = conversation_text(site.calls[-1].body)
    for text in ("not repeated: deployed", "not repeated: I saw it.", "A person decided to go on without this."):
        assert text in heard
    assert len(site.show("t").sessions) == 1
    assert "is done, not of unknown outcome" in site.tell("settle", key_of("during"), "--retry", code=1)


def test_a_deploy_waits_for_a_person_s_word(site: Site) -> None:
    """A ticket whose deploy needs approval leaves its slot, and its session goes on with a yes or a no."""
    sent = site.root / "sent"
    command = f"echo $IDEMPOTENCY_KEY >> {sent}; echo deployed"
    told_of = {"description": "Deploy.", "command": command, "approval": True}
    site.configure(concurrency=1, **{"effects.deploy": told_of, "effects.deploy.input": {"version": "Which."}})
    turns = (calls(deploy("it")), calls(deploy("it")), bash("echo one > one.txt"), say("Done."))
    site.plays_for(yes=turns, no=turns, other=(bash("echo two > two.txt"), say("Done.")))
    site.add("yes", "for-yes")
    site.add("no", "for-no")
    site.start()
    for ticket in ("yes", "no"):
        site.wait_for(Name.TICKET_HELD, ticket)
        assert "`ticket-runner effects" in site.tell("retry", ticket, code=1)
    site.add("other", "for-other")
    site.wait_for(Name.TICKET_FINISHED, "other")
    keys = {ticket: f"folder/{ticket}/1/deploy.it" for ticket in ("yes", "no")}
    for ticket, key in keys.items():
        shown = site.show(ticket)
        assert (shown.ticket.state, shown.ticket.reason, shown.kinds) == ("held", "approval", [("first", "asked")])
        assert key in shown.why
        assert site.tell("effects", ticket).splitlines()[1].split() == [key, "deploy", "approval", "0", "version=it"]
    assert lines(sent) == []
    for decision in (["--retry"], ["--done", "I saw it."]):
        said = site.tell("settle", keys["no"], *decision, code=1)
        assert f"was never performed: `approve {keys['no']}`, or `settle {keys['no']} --abandon`" in said
    site.tell("settle", keys["no"], "--abandon")
    site.tell("approve", keys["yes"])
    for ticket in keys:
        site.wait_for(Name.TICKET_FINISHED, ticket)
    assert lines(sent) == [keys["yes"]]
    for ticket, known, again in (
        ("yes", "- deploy.it: done (deployed)", "Done before, and not repeated: deployed"),
        ("no", "- deploy.it: abandoned", "A person decided to go on without this. Do not ask for it again."),
    ):
        assert "A person has to approve this." in told(site, 1, f"for-{ticket}")
        assert known in told(site, 1, f"for-{ticket}")
        assert told(site, 2, f"for-{ticket}") == again
        shown = site.show(ticket)
        assert (shown.ticket.state, len(shown.sessions)) == ("done", 1)
        assert shown.kinds == [("first", "asked"), ("resumed", "finished")]
        assert "waiting for approval" in site.tell("approve", keys[ticket], code=1)


def test_commands_that_behave_badly(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that hangs, floods, dies or leaves processes is ended and told; no credential is misplaced."""
    monkeypatch.setenv("DEPLOY_TOKEN", SECRET)
    environment = site.root / "environment"
    commands: dict[str, dict[str, object]] = {
        "floods": {
            "command": f"env > {environment}; head -c 10000000 /dev/zero | tr '\\000' x; echo; echo all $DEPLOY_TOKEN",
            "env": ["DEPLOY_TOKEN"],
        },
        "leaves": {"command": "(setsid nohup sleep 301 &) ; sleep 302 & echo left"},
        "dies": {"command": "echo half; kill -KILL $$"},
        "hangs": {"command": "sleep 303", "timeout_s": 1},
    }
    site.configure(**{f"effects.{name}": {"description": "Do.", **it} for name, it in commands.items()})
    site.plays(
        calls(*((name, {}) for name in commands)),
        bash("env > agents.txt; tr '\\000' '\\n' < /proc/$PPID/environ >> agents.txt"),
        say("Done."),
    )
    site.add("t")
    assert site.works_once() == 4
    assert site.processes("t") == []
    rows = effects_of(site, "t")
    assert {name: (it.state, it.attempts) for name, it in rows.items()} == {
        "floods": ("done", 1),
        "leaves": ("done", 1),
        "dies": ("claimed", 1),
        "hangs": ("claimed", 1),
    }
    assert rows["floods"].outcome is not None
    assert rows["floods"].outcome.endswith("x\nall [redacted]")
    assert len(rows["floods"].outcome) <= 2000
    assert rows["leaves"].outcome == "left"
    assert rows["dies"].outcome == "it was ended by signal 9: half"
    assert rows["hangs"].outcome == "it was ended after its 1 s"
    shown = site.show("t")
    assert (shown.ticket.state, shown.ticket.reason, shown.kinds) == ("held", "effect", [("first", "asked")])
    assert rows["dies"].key in shown.why
    assert rows["hangs"].key in shown.why
    table = site.tell("effects")
    assert table.count("unknown") == 2
    site.tell("settle", rows["dies"].key, "--done", "I saw it.")
    assert site.works_once() == 3, "the other one is open"
    site.tell("settle", rows["hangs"].key, "--abandon")
    assert site.works_once() == 0
    text = told(site, 1)
    for line in (
        "x\nall [redacted]",
        "Done: left",
        "Whether this happened is not known: it was ended by signal 9: half",
        "Whether this happened is not known: it was ended after its 1 s",
        "- dies: done (I saw it.)",
        "- hangs: abandoned",
    ):
        assert line in text
    assert len(text) < 10_000
    command_s = dict(line.partition("=")[::2] for line in lines(environment))
    agent_s = site.git("show", "ticket/t:agents.txt")
    assert command_s["DEPLOY_TOKEN"] == SECRET
    assert command_s["IDEMPOTENCY_KEY"] == "folder/t/1/floods"
    assert (command_s["TICKET_ID"], command_s["TICKET_BRANCH"]) == ("t", "ticket/t")
    assert not [name for name in command_s if name.startswith(("ANTHROPIC", "CLAUDE"))]
    assert "offline" not in command_s.values(), "the model's credential"
    assert "TICKET_RUNNER_COOKIE" in agent_s
    for word in ("DEPLOY_TOKEN", SECRET, "IDEMPOTENCY_KEY"):
        assert word not in agent_s
    assert not any(SECRET in str(call.body) for call in site.calls)
