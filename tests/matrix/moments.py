"""When a daemon is struck, and how.

A moment is the commit of the nth event of a name, or a step that no event marks. Pure.
"""

from dataclasses import dataclass
from enum import StrEnum

from runner.events import Name


class Way(StrEnum):
    """How it is struck."""

    DAEMON = "daemon"
    """SIGKILL of the daemon alone, as the OOM killer does."""
    TREE = "tree"
    """SIGKILL of the daemon and of everything that carries its cookie, as a loss of power does."""
    TERM = "term"
    """SIGTERM, with no time to drain."""


class Inside(StrEnum):
    """Steps that no event marks."""

    MODEL_ASKED = "model.asked"
    """The model has been asked and has not answered."""

    COMMENT_WRITTEN = "comment.written"
    """The comment is at the outside, its outcome not in the ledger."""
    DEPLOY_BEGUN = "deploy.begun"
    """The effect's command runs and has done nothing yet."""
    DEPLOY_ACTED = "deploy.acted"
    """The outside has it; the command has not ended."""


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """The nth time that something happens to one daemon; without a name, its nth event of any."""

    name: Name | Inside | None
    ordinal: int

    def __str__(self) -> str:
        return f"{self.name or 'event'} {self.ordinal}"

    @classmethod
    def parse(cls, text: str) -> "Moment":
        """Return the moment that `str` wrote."""
        name, _, ordinal = text.rpartition(" ")
        if name == "event":
            return cls(None, int(ordinal))
        return cls(Inside(name) if name in set(Inside) else Name(name), int(ordinal))


@dataclass(frozen=True, slots=True)
class Blow:
    """One kill: at a moment, or `after_s` seconds after the daemon's start."""

    way: Way
    moment: Moment | None = None
    after_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.moment or f'{self.after_s:.3f} s'} ({self.way})"

    @property
    def may_miss(self) -> bool:
        """Whether a daemon may come to its end without it: it falls at random."""
        return self.moment is None or self.moment.name is None

    @classmethod
    def parse(cls, text: str) -> "Blow":
        """Return the blow that `str` wrote."""
        when, _, way = text.removesuffix(")").rpartition(" (")
        if when.endswith(" s"):
            return cls(Way(way), after_s=float(when.removesuffix(" s")))
        return cls(Way(way), Moment.parse(when))


@dataclass(frozen=True, slots=True)
class Cell:
    """The blows that one ticket gets, each to the daemon that follows the one before."""

    blows: tuple[Blow, ...] = ()
    story: str = "full"
    fresh: bool = False
    """A person asks for a fresh session after each blow: what it would cost without resuming."""
    loses: bool = False
    """With the first blow the transcript is lost."""

    def __str__(self) -> str:
        words = [self.story, ", then ".join(map(str, self.blows)) or "undisturbed"]
        return ": ".join([*words, *(["fresh"] if self.fresh else []), *(["lost"] if self.loses else [])])

    @classmethod
    def parse(cls, text: str) -> "Cell":
        """Return the cell that `str` wrote."""
        story, blows, *words = text.split(": ")
        struck = () if blows == "undisturbed" else tuple(map(Blow.parse, blows.split(", then ")))
        return cls(struck, story, fresh="fresh" in words, loses="lost" in words)
