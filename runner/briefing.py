"""What the next run of a ticket is told: the facts of the log, of git and of the ledger, as prompt.py words them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from anyio.to_thread import run_sync

from runner import tools, transcript
from runner.catchup import Conflict
from runner.effects import Ledger
from runner.lines import FailedLine
from runner.parts import Parts
from runner.prompt import Handover, by_default, first, fresh, resumed, rules
from runner.run import Brief
from runner.session import Kind, Plan
from runner.store import effects, log, questions, sessions
from runner.store.questions import Question
from runner.store.tickets import Row
from runner.transcript import Words
from runner.worktree import Tree
from tickets.ticket import Spec


async def brief(
    parts: Parts, ledger: Ledger, row: Row, tree: Tree, *, verify: Sequence[str], failed: FailedLine | Conflict | None
) -> Brief:
    """Return what the next run is told, and may ask.

    Args:
        parts: Of the daemon.
        ledger: For the tools.
        row: The ticket as claimed.
        tree: Its worktree.
        verify: The commands that are run when the agent is done.
        failed: The check, or the merge of the base, that is sent back; None when none is.
    """
    instructions = await run_sync(parts.repository.instructions, tree.base_sha)
    return Brief(
        prompt=partial(_prompt, row.spec, await _handover(parts, row, tree), failed, await _words(parts, row, tree)),
        system=rules(row.spec, branch=tree.branch, verify=verify, instructions=instructions),
        tools=partial(
            tools.tools_of,
            config=parts.config,
            store=parts.store,
            ledger=ledger,
            row=row,
            redactor=parts.redactor,
        ),
        kind=Kind.FIX if failed else None,
    )


def _prompt(
    spec: Spec,
    handover: Handover,
    failed: FailedLine | Conflict | None,
    words: Callable[[], Words],
    plan: Plan,
    left_microusd: int,
) -> str:
    facts = replace(handover, left_microusd=left_microusd)
    if plan.kind is Kind.FIRST and not handover.answers:
        return first(spec)
    sent_back = None if failed is None else failed.prompt
    if not plan.resume:
        last = words()
        told = fresh(spec, replace(facts, said=last.said, plan=last.plan))
    else:
        told = resumed(facts) if sent_back is None or facts.new_answers else ""
    return "\n\n".join(text for text in (told, sent_back) if text)


async def _handover(parts: Parts, row: Row, tree: Tree) -> Handover:
    ticket, write = row.ticket.id, parts.store.write
    facts = await run_sync(parts.repository.facts, ticket, tree.base_sha)
    cut_off = await write(log.open_tools, ticket)
    known = await write(effects.effects, ticket=ticket)
    return Handover(
        cut_off=tuple(f"{tool.payload.get('tool')}: {tool.payload.get('summary')}" for tool in cut_off),
        commits=tuple(f"{commit.sha[:10]} {commit.subject}" for commit in facts.commits),
        uncommitted=facts.uncommitted,
        failed_check=await write(log.failed_check, ticket),
        conflicts=await run_sync(parts.repository.conflicts, ticket),
        effects=tuple(tools.summary(row) for row in known if row.kind not in effects.OURS),
        answers=_pairs(await write(questions.answered, ticket)),
        new_answers=_pairs(await write(questions.new_answers, ticket)),
        account=await write(sessions.last_account, ticket),
        moved_to=str(tree.path) if await write(log.moved, ticket) else None,
    )


async def _words(parts: Parts, row: Row, tree: Tree) -> Callable[[], Words]:
    """Return what finds the last words of the latest session that has any; it reads files."""
    known = await parts.store.write(sessions.sessions_of, row.ticket.id)
    files = [transcript.path(parts.home.claude, tree.path, session.id) for session in reversed(known)]

    def words() -> Words:
        found = next((last for last in map(transcript.last_words, files) if last != Words()), Words())
        text = parts.redactor.text
        return Words(text(found.said), tuple(map(text, found.plan)))

    return words


def _pairs(answered: Iterable[Question]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (question.text, by_default(question.answer or "") if question.is_by_default else question.answer or "")
        for question in answered
    )
