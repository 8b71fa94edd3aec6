"""Mend what can be mended without deciding anything: what the next start of a daemon would do, done now.

It ends leftover processes, ends the runs that a dead daemon left open with what their
transcripts tell, and forgets worktrees whose directory is gone. The one invariant: it
holds the home's lock, and deletes no work.
"""

from collections.abc import Iterator

import anyio

from runner import processes
from runner.accounts import bill_of, end_orphan
from runner.config import Config
from runner.events import Name
from runner.home import Home
from runner.parts import local_copies
from runner.processes import ProcessesRemain
from runner.store import Store, Tx, log, runs, tickets
from runner.worktree import Place


def repair(config: Config, store: Store) -> Iterator[str]:
    """Mend, and yield what was done and what was left, a line each; the caller holds the home's lock."""
    home = Home.of(config)
    rows = {row.ticket.id: row for row in store.read(tickets.all_rows) if row.is_of(home.name)}
    yield from _sweep(home, store)
    for run in store.read(runs.unended):
        if run.ticket in rows:
            asking = store.read(log.may_be_asking, run.id)
            bill = bill_of(home.claude, home.worktrees / run.ticket, run, None, asking=asking)
            store.transact(end_orphan, run, bill, config)
            cost, cut = bill.cost, "+" if bill.cost.cut else ""
            yield f"{run.ticket}: ended run {run.id}, which cost ${cost.microusd / 1e6:.4f}{cut} ({cost.kind})"
    repository = local_copies(config)
    for ticket in rows:
        if repository.place(ticket) is Place.GONE and repository.forget(ticket):
            yield f"{ticket}: forgot the worktree {repository.path_of(ticket)}, which is gone; its branch stays"


def _sweep(home: Home, store: Store) -> Iterator[str]:
    found = processes.find(str(home.path))
    for ticket in sorted({each.cookie.ticket for each in found if each.cookie.kind == "agent"}):
        try:
            reaped = anyio.run(processes.reap, str(home.path), ticket)
        except ProcessesRemain as error:
            yield f"{ticket}: left: {error}"
            continue
        names = sorted({each.name for each in reaped.processes})
        if ticket in {row.ticket.id for row in store.read(tickets.all_rows)}:
            store.transact(
                Tx.log, ticket, Name.PROCESSES_REAPED, names=names, cli=reaped.cli_alive, killed=reaped.cli_killed
            )
        yield f"{ticket}: ended {len(reaped.processes)} processes: {', '.join(names)}"
    for each in found:
        if each.cookie.kind == "effect":
            yield f"{each.cookie.ticket}: left {each.name} ({each.pid}): it performs an effect, which is not cut off"
