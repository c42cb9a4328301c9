"""Where a piece of the context came from, and who asks: what rules about information flow read."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

MEMORY = "memory"
"""The source of what was recalled from earlier conversations."""
MOST_SOURCES = 16
"""Sources that are kept by name; whether there was one at all is never lost."""


class Label(Struct, frozen=True, gc=False, omit_defaults=True):
    """What is known of a text by where it came from. Joining labels never takes anything away."""

    untrusted: bool = False
    """Somebody else may have written it: it is data, and never a reason to act."""
    private: bool = False
    """It is not for everybody: it may not leave without a person's word."""
    sources: tuple[str, ...] = ()
    """The tools it came through."""

    def __or__(self, other: Label) -> Label:
        if other is CLEAN or other == self:
            return self
        if self is CLEAN:
            return other
        sources = dict.fromkeys((*self.sources, *other.sources))
        return Label(
            self.untrusted or other.untrusted,
            self.private or other.private,
            tuple(sources)[:MOST_SOURCES],
        )


CLEAN = Label()
"""Of what the user and the operator said themselves."""


def joined(labels: Iterable[Label]) -> Label:
    """The label of what was made from all of these."""
    label = CLEAN
    for one in labels:
        label = label | one
    return label


class Principal(Struct, frozen=True, omit_defaults=True):
    """On whose behalf a call is made: the key of every rate, budget, record and query."""

    tenant: str = "local"
    user: str = ""
    agent: str = ""


LOCAL = Principal()
"""Whoever sits at this machine."""
