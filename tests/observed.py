"""A daemon that looks around at some events, as they are committed, and kills itself at another.

Run as a program. Production code has no such switch: this passes its own listener.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from pydantic import BaseModel

from runner import log, processes
from runner.config import Config
from runner.events import Event, Name
from runner.home import Home


class Look(BaseModel):
    """What a daemon saw around it at an event."""

    name: str
    ticket: str
    pids: list[int]


def main() -> int:
    """Be a daemon that notes what is around it at some events, and kills itself at another."""
    from runner import daemon  # noqa: PLC0415  a test needs no SDK to start a process that does

    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--die-at", type=Name)
    parser.add_argument("--look-at", type=Name, action="append", default=[])
    parser.add_argument("--looks", type=Path)
    told = parser.parse_args()
    config = Config.load(told.config)
    home = str(Home.of(config).path)

    def observe(event: Event) -> None:
        log.show(event)
        if event.name in told.look_at:
            pids = [each.pid for each in processes.find(home, event.ticket, "agent")]
            with told.looks.open("a") as file:
                file.write(Look(name=event.name, ticket=event.ticket, pids=pids).model_dump_json() + "\n")
        if event.name is told.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return daemon.serve(config, once=told.once, on_event=observe)


if __name__ == "__main__":
    sys.exit(main())
