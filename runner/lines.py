"""Shell lines of the configuration, run in a ticket's worktree: its set-up and its checks.

They get no credential of the model. What they print goes to the agent, and with a hold or a
wait into its ticket's note, and so into the log, redacted and bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from runner import prompt
from runner.children import CommandEnd, run_command
from runner.events import Name, Value
from runner.loops import same
from runner.parts import Parts
from runner.processes import Cookie
from runner.store import claims
from runner.worktree import Tree
from tickets.ticket import Reason, Ticket

_COMMAND_CHARS = 200  # in a note's first line, which is all that the table shows


@dataclass(frozen=True, slots=True)
class Told:
    """The events of one kind of lines."""

    started: Name
    passed: Name
    failed: Name


SETUP = Told(Name.SETUP_STARTED, Name.SETUP_PASSED, Name.SETUP_FAILED)
CHECK = Told(Name.CHECK_STARTED, Name.CHECK_PASSED, Name.CHECK_FAILED)


@dataclass(frozen=True, slots=True)
class FailedLine:
    """The first line that did not pass."""

    command: str
    ending: str
    output: str
    """The end of what it printed, redacted."""

    def __str__(self) -> str:
        command = self.command.strip()
        first = command.partition("\n")[0][:_COMMAND_CHARS]
        return f"`{first}{'' if first == command else ' ...'}`: {self.ending}\n{self.output}"

    @property
    def reason(self) -> Reason:
        """Why a ticket is held when the agent cannot mend it."""
        return Reason.CHECKS

    @property
    def prompt(self) -> str:
        """What the agent is told."""
        return prompt.fix(self.command, self.ending, self.output)


async def run_lines(
    parts: Parts, ticket: Ticket, tree: Tree, told: Told, commands: Sequence[str], *, limit_s: float
) -> FailedLine | None:
    """Run `commands` in order and return the first that fails; each may take `limit_s`.

    Raises:
        LostTicket: The claim is not ours any more.
    """
    for command in commands:
        await parts.store.write(claims.log_event, ticket.id, ticket.token, told.started, {"command": command})
        end = await run_command(
            command,
            cwd=tree.path,
            environment=parts.private(parts.command_environment, ticket.id),
            cookie=Cookie(str(parts.home.path), ticket.id, ticket.token),
            timeout_s=limit_s,
            redact=parts.redactor.text,
        )
        passed = end.exit_code == 0 and not end.timed_out
        facts: dict[str, Value] = {"command": command, "ending": _ending(end), "duration_s": round(end.duration_s, 3)}
        if not passed:
            facts["failure_sha"] = same(f"{command}\n{_ending(end)}\n{end.output}")
        await parts.store.write(
            claims.log_event, ticket.id, ticket.token, told.passed if passed else told.failed, facts
        )
        if not passed:
            return FailedLine(command, _ending(end), end.output)
    return None


def _ending(end: CommandEnd) -> str:
    if end.timed_out:
        return f"stopped after {end.duration_s:.0f} s"
    if end.signal is not None:
        return f"ended by signal {end.signal}"
    return f"exit code {end.exit_code}"
