"""A real agent that asks, a person who answers, and daemons that are killed in between."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import time_ns

import pytest
from pydantic import JsonValue

from runner.events import Name
from runner.offline import Reply, ToolUse, final_text_of
from runner.session import session_id
from tests.daemons import Site, bash, say, wait_until_gone

pytestmark = pytest.mark.timeout(180)  # several runs, each with the real CLI

COLOUR, SIZE = "Which colour shall it have?", "And which size?"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site whose model has nothing to say yet."""
    with Site.at(tmp_path) as site:
        yield site


def ask(question: str, **default: JsonValue) -> ToolUse:
    """Return a call that asks, with a default answer if there is one."""
    arguments: dict[str, JsonValue] = {"question": question}
    return ToolUse("mcp__runner__ask", arguments | ({"default": default} if default else {}))


def test_questions_wait_for_one_answer(site: Site) -> None:
    """What a ticket asks at once waits outside of its slot, over a kill, for one answer, which its session hears."""
    site.configure(concurrency=1, limits={"effects": 1}, notify={"command": "echo no such mail server; exit 1"})
    comment = ToolUse("mcp__runner__comment", {"operation": "plan", "body": "It will be red."})
    turns = (
        bash("echo one > one.txt"),
        Reply((ask(COLOUR), ask(SIZE))),
        Reply((comment,)),
        say("It is red."),
    )
    site.plays_for(asking=turns, other=(bash("echo two > two.txt"), say("Done.")))
    site.add("t", "for-asking")
    daemon = site.start()
    site.wait_for(Name.TICKET_HELD, "t")
    site.add("other", "for-other")
    site.wait_for(Name.TICKET_FINISHED, "other")
    site.wait_for(Name.EFFECT_UNKNOWN, "other")
    daemon.kill()
    wait_until_gone(site.processes())
    asked = len(site.calls)
    assert site.works_once() == 3, "nobody has answered"
    shown = site.show("t")
    assert (shown.ticket.state, shown.ticket.reason, shown.kinds) == ("held", "question", [("first", "asked")])
    assert (COLOUR in shown.why, SIZE in shown.why) == (True, True)
    assert '"terminal_reason": "hook_stopped"' in site.tell("show", "t", "--json")
    page = site.tell("show", "t")
    assert page.count("(no answer yet)") == 2
    for verb in ("release", "retry"):
        assert "it is held (question): `ticket-runner answer t TEXT`" in site.tell(verb, "t", code=1)
    assert "ticket other (done) has no open question" in site.tell("answer", "other", "Red.", code=1)
    assert "no ticket" in site.tell("answer", "nobody", "Red.", code=1)
    assert "the answer is empty" in site.tell("answer", "t", " ", code=64)
    assert site.tell("answer", "t", "Red, and large.").strip() == "t has its answer and is ready"
    assert "has no open question" in site.tell("answer", "t", "Or blue.", code=1)

    assert site.works_once() == 0
    shown = site.show("t")
    assert (shown.ticket.state, shown.kinds) == ("done", [("first", "asked"), ("resumed", "finished")])
    resumed = site.calls[asked]
    assert {call.session_id for call in site.calls if call.scene == "for-asking"} == {session_id("folder", "t", 1)}
    assert len([call for call in site.calls if call.scene == "for-asking"]) <= len(turns) + 1
    (prompt,) = resumed.last_user_texts
    assert prompt.startswith("Your question has an answer:\n\nRed, and large.\n\nGo on with the ticket.")
    assert "cut off" not in prompt
    assert final_text_of(resumed.body).count("Your question is saved.") == 2
    comments = site.config.queue_directory / "comments/t"
    assert sorted(file.read_text().partition("\n")[0] for file in comments.iterdir()) == [
        "Done on ticket/t.",
        "Held (question).",
        "It will be red.",
    ]


def test_an_answer_at_any_moment_lets_the_ticket_go_on(site: Site) -> None:
    """An answer while the run still ends, and one after its daemon was killed as it asked, are heard by the session."""
    wait = ToolUse("Bash", {"command": "touch asked; for i in $(seq 300); do test -e go && exit; sleep 0.1; done"})
    turns = (Reply((ask(COLOUR), wait)), bash("rm -f asked go; echo red > red.txt"), say("It is red."))
    site.plays(*turns)
    site.add("soon")
    daemon = site.start()
    site.wait_for(Name.QUESTION_ASKED, "soon")
    site.waits_in_tool("soon", "asked")
    assert site.tell("answer", "soon", "Red.").strip() == "soon has its answer and is running"
    assert Name.RUN_ENDED not in site.names("soon")
    (site.worktree("soon") / "go").touch()
    site.wait_for(Name.TICKET_FINISHED, "soon")
    daemon.kill()
    shown = site.show("soon")
    assert (shown.kinds, shown.ticket.attempts) == ([("first", "asked"), ("resumed", "finished")], 0)
    assert Name.TICKET_HELD not in site.names("soon")
    heard = [call for call in site.calls if "Your question has an answer:\n\nRed." in "".join(call.last_user_texts)]
    assert len(heard) == 1

    site.plays(Reply((ask(COLOUR),)), say("Thank you."))  # which a CLI whose daemon died may have heard already
    for ticket, code in (("held", 4), ("running", None)):
        site.add(ticket, expects="nothing")
        site.dies_at(Name.QUESTION_ASKED)
        if code is not None:
            assert site.works_once() == code
            assert site.show(ticket).ticket.reason == "question"
        wait_until_gone(site.processes())
        asked = len(site.calls)
        assert site.tell("answer", ticket, "Blue.").startswith(f"{ticket} has its answer")
        assert site.works_once() == 0
        shown = site.show(ticket)
        assert (shown.kinds, shown.ticket.attempts) == ([("first", "orphaned"), ("resumed", "finished")], 0)
        assert "Your question has an answer:\n\nBlue." in "".join(site.calls[asked].last_user_texts)
        assert len(site.calls) == asked + 1


def test_a_deadline_wakes_the_daemon(site: Site) -> None:
    """A default is taken at its deadline, not at the next look at the queue, and its session hears that it was."""
    site.configure(poll_s=600, limits={"question_deadline_s": 240})
    site.plays(
        Reply((ask(SIZE, deadline_minutes=5),)),
        Reply((ask(COLOUR, answer="Red.", deadline_minutes=5),)),
        bash("echo red > red.txt"),
        say("It is red."),
    )
    site.add("t")
    assert site.works_once() == 4
    assert "taken at " in site.show("t").why
    assert "the default is taken: Red." in site.tell("show", "t")
    with closing(sqlite3.connect(site.home.database)) as database, database:
        ((waits_us,),) = database.execute("SELECT deadline_us - asked_at_us FROM question")
        database.execute("UPDATE question SET deadline_us = ?", (time_ns() // 1000 + 2_000_000,))
    assert waits_us == 240_000_000
    site.start()
    site.wait_for(Name.TICKET_FINISHED, "t")
    assert [event.payload for event in site.log("t") if event.name is Name.QUESTION_ANSWERED] == [
        {"questions": 1, "by": "deadline"}
    ]
    heard = "Your question has an answer:\n\nNobody answered in time, so the default that you gave is taken: Red."
    assert len([call for call in site.calls if heard in "".join(call.last_user_texts)]) == 1
    refused = next(call for call in site.calls if call.turn == 1)
    assert "answer" in final_text_of(refused.body)
    assert [kind for kind, _ in site.show("t").kinds] == ["first", "resumed"]
    assert Name.SESSION_OUTDATED not in site.names("t"), "its rules are the same at each claim"
    assert "Red. (by deadline)" in site.tell("show", "t")
