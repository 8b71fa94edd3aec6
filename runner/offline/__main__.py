"""`python -m runner.offline`: the scripted Messages API for a person who wants to try without a key.

Knows the default script, which makes a small visible change for any ticket. Does not know the runner.
"""

import argparse
import signal
import sys
from pathlib import Path

from runner.offline.script import Reply, Scene, Script, Text, ToolUse
from runner.offline.server import ScriptedServer

_NOTE = "scripted-change.txt"
_DEFAULT = Script(
    (
        Scene(
            "",
            (
                Reply((Text("I will look around first."), ToolUse("Bash", {"command": "git log --oneline -5; ls"}))),
                Reply((ToolUse("Bash", {"command": f"date >> {_NOTE} && cat {_NOTE}"}),), cache_read_tokens=1500),
                Reply((Text(f"Done: {_NOTE} has one line more."),), cache_read_tokens=3000),
            ),
        ),
    )
)


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: a number from 0 to 65535")
    return int(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m runner.offline",
        description="Serve a scripted Messages API on loopback, for Claude Code without a model or a key.",
    )
    parser.add_argument("--port", type=_port, default=8765, help="0: any free one (default: %(default)s)")
    parser.add_argument("--script", type=Path, help="JSON to play instead of the default, as docs/offline.md says")
    parser.add_argument("--record", type=Path, help="append each request to this file, as a line of JSON")
    parser.add_argument("--print-script", action="store_true", help="print the script as JSON, to start from, and end")
    return parser.parse_args()


def _read(file: Path) -> Script:
    """Return the script in `file`.

    Raises:
        OSError: It cannot be read.
        ValueError: All that is wrong with it, one line each, with the file's name.
    """
    try:
        return Script.from_json(file.read_bytes())
    except ValueError as error:
        raise ValueError("\n".join(f"{file.name}: {problem}" for problem in str(error).splitlines())) from None


def main() -> int:
    """Serve until Ctrl-C or SIGTERM; return 64 when the script or the port can't be used."""
    arguments = _arguments()
    try:
        script = _read(arguments.script) if arguments.script else _DEFAULT
        if arguments.print_script:
            print(script.to_json())
            return 0
        server = ScriptedServer(script, port=arguments.port, record=arguments.record)
    except (OSError, ValueError) as why:
        for problem in str(why).splitlines():
            print(f"python -m runner.offline: {problem}", file=sys.stderr)
        return 64
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before the server's thread starts, so that it inherits the mask
    with server:
        print(
            f"Scripted Messages API on {server.url}; Ctrl-C ends it. For Claude Code, or for the runner:\n\n"
            f"export ANTHROPIC_BASE_URL={server.url}\n"
            "export ANTHROPIC_API_KEY=offline\n"
            "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1\n",
            flush=True,
        )
        signal.sigwait(ends)
    print(f"\nServed {len(server.served)} requests for ${server.cost_microusd / 1e6:.4f} of play money.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
