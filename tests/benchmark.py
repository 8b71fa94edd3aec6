"""What the runner costs beside a bare loop over the SDK: the same tickets, model and repository, in one run.

`python -m tests.benchmark [TICKETS]` prints both and their ratio; a ratio is what may be
compared, the seconds are those of one machine. The bare loop does what a script would:
a worktree, a query, a commit, a push. It keeps no log, no ledger and survives nothing.
"""

import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import anyio
from claude_agent_sdk import ClaudeAgentOptions, query

from runner.config.schema import Agent
from tests.daemons import Site, bash, say

TOOLS = [*Agent().tools]


@dataclass(frozen=True)
class Cost:
    """What a way to work through the tickets took."""

    wall_s: float
    cpu_s: float
    """Of it and all that it started."""


def measured(arguments: list[str], environment: dict[str, str], cwd: Path) -> Cost:
    """Return what a program took, which has to end well."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), monotonic()
    subprocess.run(arguments, env=os.environ | environment, cwd=cwd, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


async def bare(repository: Path, trees: Path, tickets: int) -> None:
    """Work through the tickets with the SDK alone."""

    def git(directory: Path, *arguments: str) -> None:
        subprocess.run(["git", "-C", directory, *arguments], check=True, capture_output=True)

    for number in range(tickets):
        tree = trees / f"t{number}"
        git(repository, "worktree", "add", "-b", f"bare/t{number}", str(tree))
        options = ClaudeAgentOptions(
            cwd=tree,
            permission_mode="dontAsk",
            tools=TOOLS,
            allowed_tools=TOOLS,
            setting_sources=[],
            model="claude-sonnet-4-5",
            system_prompt={"type": "preset", "preset": "claude_code"},
        )
        async for _ in query(prompt=f"Ticket {number}", options=options):
            pass
        git(tree, "add", "--all")
        git(tree, "-c", "user.name=n", "-c", "user.email=n@localhost", "commit", "--quiet", "-m", f"Ticket {number}")
        git(tree, "push", "--quiet", ".", f"HEAD:refs/heads/delivered/t{number}")


def main(tickets: int) -> None:
    """Measure both, one after the other, and print them."""
    with tempfile.TemporaryDirectory() as root, Site.at(Path(root), concurrency=1) as site:
        site.plays(bash("ls"), bash("date > made"), say("Made."))
        environment = {
            "ANTHROPIC_BASE_URL": site.server.url,
            "ANTHROPIC_API_KEY": "offline",
            "CLAUDE_CONFIG_DIR": str(Path(root) / "bare-claude"),
            "CLAUDE_CODE_TMPDIR": root,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        loop = [sys.executable, "-m", "tests.benchmark", "--bare", str(site.repository), str(Path(root) / "trees")]
        alone = measured([*loop, str(tickets)], environment, Path(__file__).parent.parent)
        for number in range(tickets):
            site.add(f"t{number}", f"Ticket {number}")
        began, cpu = monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        assert site.works_once() == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        ours = Cost(monotonic() - began, after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime)
    print(f"{tickets} tickets, three replies each, one at a time\n")
    print(f"bare SDK loop   {alone.wall_s:6.1f} s wall  {alone.cpu_s:6.1f} s cpu")
    print(f"ticket-runner   {ours.wall_s:6.1f} s wall  {ours.cpu_s:6.1f} s cpu")
    print(f"ratio           {ours.wall_s / alone.wall_s:6.2f}         {ours.cpu_s / alone.cpu_s:6.2f}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--bare", repository, trees, count]:
            anyio.run(bare, Path(repository), Path(trees), int(count))
        case [count]:
            main(int(count))
        case _:
            main(5)
