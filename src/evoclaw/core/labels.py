"""Labels (where a text came from) and principals (on whose behalf): the basis of flow policies."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

MEMORY_SOURCE = "memory"
"""The source of text recalled from earlier conversations."""
NOTE_SOURCE = "note"
"""The source of a note that EvoClaw added to a message."""
MAX_LABEL_SOURCES = 16
"""Sources that are kept by name; more are dropped, but the flags always stay."""


class Label(Struct, frozen=True, gc=False, omit_defaults=True):
    """Where a text came from. Joining labels never removes a flag."""

    untrusted: bool = False
    """An outsider may have written it: it is data, never an instruction."""
    private: bool = False
    """It is confidential: it may not leave without a person's approval."""
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
            tuple(sources)[:MAX_LABEL_SOURCES],
        )


CLEAN = Label()
"""The label of text written by the user or the operator."""


def join_labels(labels: Iterable[Label]) -> Label:
    """The join of several labels."""
    label = CLEAN
    for other in labels:
        label = label | other
    return label


class Principal(Struct, frozen=True, omit_defaults=True):
    """On whose behalf a call is made; rates, budgets, records and queries are keyed by it."""

    tenant: str = "local"
    user: str = ""
    agent: str = ""


LOCAL_PRINCIPAL = Principal()
"""The user of this machine."""
