"""The cells of the matrix, and docs/crash-matrix.md, which says what came of each.

The document is the list of moments: a test compares it with what undisturbed tickets
log, and each cell that is played with its outcome there. Seconds and model calls in it
are what was measured once.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from operator import itemgetter
from pathlib import Path
from random import Random
from statistics import median

from runner.events import Event, Name
from tests.matrix.moments import Blow, Cell, Inside, Moment, Way
from tests.matrix.play import Played
from tests.matrix.verdict import Verdict

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "crash-matrix.md"
RANDOM_S = 12.0
"""Within so many seconds of a daemon's start a random kill falls: an undisturbed ticket takes as long."""
RECOVERY_EVENTS = 25
"""Within so many events of its start a recovering daemon gets the second blow of a pair."""
NOT_PLAYED = "not played"
FRESH_EVERY = 6
"""The full ticket's moments that are played with a fresh session, too."""


@dataclass(frozen=True, slots=True)
class Section:
    """Moments of one story, after the blows that lead to them."""

    name: str
    story: str
    title: str
    first: tuple[Blow, ...] = ()

    def cell(self, moment: Moment, way: Way) -> Cell:
        """Return the cell of a row and a column."""
        return Cell((*self.first, Blow(way, moment)), self.story)

    @property
    def undisturbed(self) -> Cell:
        """The cell whose last daemon nobody strikes."""
        return Cell(self.first, self.story)


SECTIONS = (
    Section("full", "full", "The full ticket"),
    Section("steered", "steered", "A ticket that an operator parks, holds, lets go, begins anew and cancels"),
    Section("decided", "decided", "A ticket with effects that are refused, unknown and approved"),
    Section("weather", "weather", "A ticket whose set-up fails once and whose model is overloaded once"),
    Section(
        "recovered",
        "full",
        "The full ticket, killed a second time while the next daemon recovers",
        (Blow(Way.DAEMON, Moment(Name.TOOL_STARTED, 1)),),
    ),
)
"""Each section but the first has the events that those before it do not reach, once each."""


def moments_of(played: Played) -> Iterator[Moment]:
    """Yield what happened to the last daemon of an undisturbed ticket, in order."""
    start = played.starts[-1]
    happened: list[tuple[int, Name | Inside]] = []
    for event in (*played.log[len(start.before) :], *(e for e in played.queue_log if e.at_us >= start.at_us)):
        happened.append((event.at_us, event.name))
        happened += [(event.at_us, inside) for inside in _inside(event)]
    happened += [(call.at_us, Inside.MODEL_ASKED) for call in played.stage.calls if call.at_us >= start.at_us]
    counts: dict[Name | Inside, int] = {}
    for _, name in sorted(happened, key=itemgetter(0)):
        counts[name] = counts.get(name, 0) + 1
        yield Moment(name, counts[name])


def _inside(event: Event) -> tuple[Inside, ...]:
    if event.name is not Name.EFFECT_CLAIMED:
        return ()
    operation = str(event.payload["key"]).rpartition("/")[2]
    if operation == "deploy":
        return Inside.DEPLOY_BEGUN, Inside.DEPLOY_ACTED
    return (Inside.COMMENT_WRITTEN,) if operation.startswith(("comment", "report")) else ()


def rows(played: Mapping[str, Played]) -> dict[str, list[Moment]]:
    """Return the moments of each section, given its undisturbed ticket."""
    known: set[Name | Inside | None] = set()
    found: dict[str, list[Moment]] = {}
    for section in SECTIONS:
        seen = list(moments_of(played[section.name]))
        is_new = section.name == "full"
        found[section.name] = [each for each in seen if is_new or (each.name not in known and each.ordinal == 1)]
        known |= {moment.name for moment in seen}
    return found


def documented() -> dict[str, dict[Moment, dict[Way, str]]]:
    """Return the document's tables: by section, moment and way, the outcome."""
    found: dict[str, dict[Moment, dict[Way, str]]] = {section.name: {} for section in SECTIONS}
    name = ""
    for line in DOCUMENT.read_text().splitlines() if DOCUMENT.exists() else ():
        if line.startswith("## "):
            name = next((each.name for each in SECTIONS if line == f"## {each.title}"), "")
        elif name and (row := re.fullmatch(r"\| `([^`]+)` \|(.*)\|", line)):
            outcomes = [cell.partition(",")[0].strip() for cell in row[2].split("|")]
            found[name][Moment.parse(row[1])] = dict(zip(Way, outcomes, strict=True))
    return found


def cells(of: Mapping[str, Sequence[Moment]]) -> list[Cell]:
    """Return every cell of the tables."""
    return [section.cell(moment, way) for section in SECTIONS for moment in of[section.name] for way in Way]


def chosen(kills: int, seed: int, of: Mapping[str, Sequence[Moment]]) -> list[Cell]:
    """Return cells with so many kills: a quarter at random times and in pairs, the others go through the table.

    First each moment in one way, then in the other ways; and when it is through, again.
    """
    rng = Random(seed)
    table = cells(of)
    rng.shuffle(table)
    table.sort(key=_nth_way())
    picked: list[Cell] = []
    struck = 0
    for cell in cycle(table):
        if struck + len(cell.blows) > kills * 3 // 4:
            break
        picked.append(cell)
        struck += len(cell.blows)
    return [*picked, *at_random(kills - struck, seed)]


def _nth_way() -> Callable[[Cell], int]:
    """Return what counts the cells before it of the same moment."""
    counts: Counter[tuple[str, Moment | None]] = Counter()

    def nth(cell: Cell) -> int:
        place = (cell.story, cell.blows[-1].moment)
        counts[place] += 1
        return counts[place]

    return nth


def at_random(kills: int, seed: int) -> list[Cell]:
    """Return cells with so many kills at random times, half of them with a second one during recovery."""
    rng = Random(seed)
    picked: list[Cell] = []
    struck = 0
    while struck < kills:
        blow = Blow(rng.choice([*Way]), after_s=round(rng.uniform(0, RANDOM_S), 3))
        again = Blow(rng.choice([*Way]), Moment(None, rng.randint(1, RECOVERY_EVENTS)))
        cell = Cell((blow, again) if rng.random() < 0.5 and struck + 1 < kills else (blow,))
        picked.append(cell)
        struck += len(cell.blows)
    return picked


def fresh_cells(of: Mapping[str, Sequence[Moment]]) -> list[Cell]:
    """Return the cells that are played with a fresh session after the kill, to compare."""
    return [Cell((Blow(Way.DAEMON, moment),), fresh=True) for moment in of["full"][::FRESH_EVERY]]


def text(of: Mapping[str, Sequence[Moment]], verdicts: Sequence[Verdict], *, seed: int) -> str:
    """Return the document."""
    by = {verdict.cell: verdict for verdict in verdicts}
    lines = [_HEAD, *_summary(of, by, verdicts, seed)]
    for section in SECTIONS:
        lines += ["", f"## {section.title}", "", "| moment | daemon | tree | term |", "|---|---|---|---|"]
        for moment in of[section.name]:
            outcomes = [_outcome(by.get(section.cell(moment, way))) for way in Way]
            lines.append(f"| `{moment}` | {' | '.join(outcomes)} |")
    return "\n".join(lines) + "\n"


def _outcome(verdict: Verdict | None) -> str:
    if verdict is None:
        return NOT_PLAYED
    if verdict.problems:
        return f"**red**: {verdict.problems[0][:80]}"
    seconds = "" if verdict.seconds is None else f", {verdict.seconds:.1f} s"
    return f"{verdict.goes_on}, {verdict.calls_more:+d}{seconds}"


def _summary(
    of: Mapping[str, Sequence[Moment]], by: Mapping[Cell, Verdict], verdicts: Sequence[Verdict], seed: int
) -> Iterator[str]:
    yield "| killed | kills | model calls more: median | worst | seconds to the next model request: median |"
    yield "|---|---|---|---|---|"
    for way in Way:
        yield _line(_WAYS[way], [by.get(SECTIONS[0].cell(moment, way)) for moment in of["full"]])
    fresh = fresh_cells(of)
    yield _line("the daemon alone, at every sixth moment", [by.get(Cell(cell.blows)) for cell in fresh])
    yield _line("the same, and a fresh session after it", [by.get(cell) for cell in fresh])
    others = [verdict for verdict in verdicts if _is_random(verdict.cell)]
    struck = sum(verdict.struck for verdict in others)
    yield ""
    yield (
        f"{sum(verdict.struck for verdict in verdicts)} kills, {struck} of them at random times and in pairs "
        f"(seed {seed}): "
        f"{sum(bool(verdict.problems) for verdict in verdicts)} tickets ended otherwise than an undisturbed one."
    )


def _line(what: str, found: Sequence[Verdict | None]) -> str:
    verdicts = [verdict for verdict in found if verdict is not None]
    if not verdicts:
        return f"| {what} | 0 | | | |"
    more = [verdict.calls_more for verdict in verdicts]
    seconds = [verdict.seconds for verdict in verdicts if verdict.seconds is not None]
    return f"| {what} | {len(more)} | {median(more):g} | {max(more)} | {median(seconds):.1f} |"


def _is_random(cell: Cell) -> bool:
    return any(blow.moment is None for blow in cell.blows)


_WAYS = {
    Way.DAEMON: "the daemon alone (SIGKILL)",
    Way.TREE: "the daemon, Claude Code and its tools (SIGKILL)",
    Way.TERM: "the daemon, with no time to drain (SIGTERM)",
}
_HEAD = """\
# Crash matrix

Written by `python -m tests.matrix --write`; `make proof` plays it again. A ticket with shell commands, a comment that
is asked for twice, a deploy, a question, a failing check and its fix is killed at every event that it logs and at each
step inside an effect, in three ways, on the real CLI with a scripted model. The daemon is started again, the question
is answered, and what came of it is compared with a ticket that nobody disturbed: state, files, commits, effects at the
outside, log, money, session, transcript, what the model is told, and that no process is left.

A row is a moment: right after the commit of the nth such event of a daemon, or a step that no event marks
(`model.asked`: the response is in flight; `comment.written`: the comment is outside; `deploy.begun`: its command runs;
`deploy.acted`: it has done it). A cell says what the next daemon did first with the ticket, how many model calls more
than undisturbed the ticket took, and how long after its start the next model request came. Claude Code writes its
transcript up to 0.1 s late: a kill of everything at once takes with it a response that came just before. After SIGTERM
the daemon lives on for a moment and may come a step further.
"""
