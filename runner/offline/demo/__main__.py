"""`python -m runner.offline.demo`: three tickets, a daemon killed in the middle of the second, and the bill.

The same twice: once as the runner goes on after a kill, by resuming the session, and once as a restart would
that begins the interrupted ticket in a new session. Both are run, neither is computed. Ends with 0 only
if everything held; leaves no process and, without --keep, no file.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from rich.console import Console

from runner.offline.demo.account import Paid, comparison, not_as_meant, paid
from runner.offline.demo.sample import FILES, INTERRUPTED, MODEL, SAMPLES, SCRIPT, SLOW
from runner.offline.demo.stage import Daemon, NotHeld, Stage, Told
from runner.offline.server import ScriptedServer

_STOPPED = 130


@dataclass(frozen=True, slots=True)
class Pass:
    """All tickets, once, with the daemon killed in the middle; `fresh`: what was interrupted begins anew."""

    stage: Stage
    console: Console
    fresh: bool
    began: float = field(default_factory=monotonic)

    def play(self) -> list[Paid]:
        """Return what each ticket came to."""
        with ScriptedServer(SCRIPT) as server:
            self.stage.build(FILES, base_url=server.url, model=MODEL)
            for sample in SAMPLES:
                (self.stage.root / f"{sample.id}.md").write_text(sample.markdown)
                self._command("add", f"{sample.id}.md")
            self._until_killed()
            if self.fresh:
                self._command("retry", INTERRUPTED, "--fresh")
            self._to_the_end()
            lines = {line.ticket.id: line for line in self.stage.overview().lines}
            return [paid(lines[sample.id], sample.title, server.served) for sample in SAMPLES]

    def _until_killed(self) -> None:
        self._say("$ ticket-runner start --once")
        with Daemon(self.stage) as daemon:
            for told in daemon.events():
                self._tell(told)
                if told.ticket == INTERRUPTED and told.event == "tool.started" and told.summary == SLOW:
                    self.stage.wait_for(SLOW)
                    daemon.kill()
                    self._say(f"kill -9: the daemon dies while `{SLOW}` runs", style="bold red")
                    return
            daemon.wait()
        raise NotHeld(f"the daemon ended before {INTERRUPTED} ran `{SLOW}`")

    def _to_the_end(self) -> None:
        self._say("$ ticket-runner start --once")
        with Daemon(self.stage) as daemon:
            for told in daemon.events():
                self._tell(told)
            daemon.wait()
        self.stage.wait_for_the_end()

    def _command(self, *words: str) -> None:
        self._say(f"$ ticket-runner {' '.join(words)}")
        self.stage.runner(*words)

    def _tell(self, told: Told) -> None:
        match told.event:
            case "run.started":
                sessions = {"first": "a session begins", "resumed": "its session goes on"}
                self._say(f"{told.ticket:<16} {sessions.get(told.kind, 'a new session begins')}")
            case "tool.started":
                summary = told.summary.removeprefix(f"{self.stage.worktree(told.ticket)}/")
                self._say(f"{'':<16}   {told.tool}: {summary}", style="dim")
            case "check.passed":
                self._say(f"{told.ticket:<16} passed: {told.command}")
            case "check.failed" | "ticket.held" | "ticket.put_back":
                self._say(f"{told.ticket:<16} {told.event}: {told.command or told.note}", style="red")
            case "branch.pushed":
                self._say(f"{told.ticket:<16} delivered", style="green")
            case _:
                pass

    def _say(self, text: str, style: str = "") -> None:
        _print(self.console, f"{monotonic() - self.began:5.1f} s  {text}", style)


def demo(root: Path, console: Console) -> list[str]:
    """Play both passes in `root`, show what came of them, and return what did not hold."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    resumed, fresh = Stage(root / "resumed", path), Stage(root / "fresh", path)
    try:
        _print(
            console,
            "Three tickets, the real Claude Code, a scripted model: no key, no network, money of the script's tokens.",
        )
        _print(console, "\n1. The daemon is killed and started again", "bold")
        first = Pass(resumed, console, fresh=False).play()
        _print(console, "\n2. The same tickets and the same kill, and the interrupted one begins anew", "bold")
        second = Pass(fresh, console, fresh=True).play()
        _print(console, "\nWhat came of the first:\n\n$ ticket-runner status --done", "bold")
        resumed.show("status", "--done")
        problems = [*_branches(resumed, console), *_branches(fresh)]
    finally:
        resumed.end()
        fresh.end()
    _print(console, "\nWhat the API served in complete replies, and what `status` says was paid:\n", "bold")
    console.print(comparison(first, second))
    problems += [problem for each in (*first, *second) for problem in each.problems]
    return problems + not_as_meant(first, second, interrupted=INTERRUPTED)


def _branches(stage: Stage, console: Console | None = None) -> list[str]:
    """Show the delivered branches; return which are not there."""
    problems = []
    for sample in SAMPLES:
        words = ("log", "--oneline", f"main..ticket/{sample.id}")
        try:
            commits = stage.git(*words, "--").strip()
        except NotHeld as error:
            problems.append(str(error))
            continue
        if console is not None:
            _print(console, f"\n$ git {' '.join(words)}", "bold")
            _print(console, commits)
        if not commits:
            problems.append(f"ticket/{sample.id} has no commit")
    return problems


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, soft_wrap=True)


def main() -> int:
    """Play the demo; return 0 if everything held, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m runner.offline.demo", description="Kill the daemon in the middle of its work, and see the bill."
    )
    parser.add_argument("--keep", action="store_true", help="keep the directory, to look around in it")
    keep = parser.parse_args().keep
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does
    console = Console(highlight=False)
    root = Path(tempfile.mkdtemp(prefix="ticket-runner-demo-"))
    try:
        problems = demo(root, console)
    except (NotHeld, OSError, subprocess.TimeoutExpired) as error:
        problems = [str(error)]
    except KeyboardInterrupt:
        return _STOPPED
    finally:
        if not keep:
            shutil.rmtree(root)
    for problem in problems:
        _print(console, f"did not hold: {problem}", "red")
    if keep:
        _print(console, f"kept: {root}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
