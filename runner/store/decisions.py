"""What a person decides about an effect: that it may be done, or what became of it.

Nothing is decided of one that is under way, or whose outcome is known.

Knows the ledger. Does not know who asks.
"""

from sqlalchemy import update

from runner.errors import RunnerError
from runner.events import Name
from runner.store import effects, schema
from runner.store.connection import Tx
from runner.store.effects import EffectRow, EffectState

_f = schema.effect.c


class NotOpen(RunnerError):
    """An effect is not in a state in which a person can decide about it."""

    def __init__(self, key: str, state: str, wanted: str) -> None:
        super().__init__(key, state, wanted)
        self.key, self.state, self.wanted = key, state, wanted

    def __str__(self) -> str:
        return f"effect {self.key} is {self.state}, not {self.wanted}: nothing was changed"


class NotPerformed(NotOpen):
    """An effect that waits for approval has no outcome that a person could have seen."""

    def __str__(self) -> str:
        return (
            f"effect {self.key} waits for approval and was never performed:"
            f" `approve {self.key}`, or `settle {self.key} --abandon`; nothing was changed"
        )


def approve(tx: Tx, key: str, *, by: str) -> EffectRow:
    """Let a wanted effect be performed.

    Raises:
        UnknownEffect: There is no such effect.
        NotOpen: It does not wait for approval.
    """
    row = effects.get(tx, key)
    if not row.waits_for_approval:
        raise NotOpen(key, row.state, "waiting for approval")
    tx.connection.execute(update(schema.effect).where(_f.key == key).values(approved_by=by, changed_at_us=tx.now_us))
    tx.log(row.ticket, Name.EFFECT_APPROVED, key=key, by=by)
    return effects.get(tx, key)


def settle(tx: Tx, key: str, state: EffectState, outcome: str | None, *, by: str) -> EffectRow:
    """Save what a person says of an effect: done, abandoned, or wanted once more.

    Raises:
        UnknownEffect: There is no such effect.
        NotPerformed: It waits for approval, and nothing but abandoning it can be said of it.
        NotOpen: Its outcome is known, or it is being performed right now.
    """
    row = effects.get(tx, key)
    if row.waits_for_approval and state is not EffectState.ABANDONED:
        raise NotPerformed(key, row.state, "performed")
    undecided = row.is_unknown or (state is not EffectState.WANTED and row.state is EffectState.WANTED)
    if not undecided:
        raise NotOpen(key, "under way" if row.state is EffectState.CLAIMED else row.state, "of unknown outcome")
    values = {"state": state, "outcome": outcome, "changed_at_us": tx.now_us}
    tx.connection.execute(update(schema.effect).where(_f.key == key).values(values))
    name = {EffectState.DONE: Name.EFFECT_DONE, EffectState.ABANDONED: Name.EFFECT_ABANDONED}
    tx.log(row.ticket, name.get(state, Name.EFFECT_WANTED), key=key, by=by)
    effects.let_go(tx, row.ticket)
    return effects.get(tx, key)
