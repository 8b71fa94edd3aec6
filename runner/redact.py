"""Take known secrets out of whatever is stored or shown.

By value: what is a secret is known, what a secret looks like is not. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MARK = "[redacted]"
SHORTEST = 6
"""Characters; a shorter value would take ordinary words out of every text."""


@dataclass(frozen=True, slots=True, repr=False)
class Redactor:
    """The secrets of one daemon."""

    secrets: tuple[str, ...]

    @classmethod
    def of(cls, secrets: Iterable[str]) -> "Redactor":
        """Return a redactor of every value that is long enough, without the space around it, longest first."""
        known = {secret for s in secrets if len(secret := s.strip()) >= SHORTEST}
        return cls(tuple(sorted(known, key=lambda secret: (-len(secret), secret))))

    def text(self, text: str) -> str:
        """Return `text` with every secret in it replaced."""
        for secret in self.secrets:
            text = text.replace(secret, MARK)
        return text

    def value(self, value: object) -> object:
        """Return a JSON-like value with every secret in its strings, keys too, replaced."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(k)): self.value(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(v) for v in value]
        return value
