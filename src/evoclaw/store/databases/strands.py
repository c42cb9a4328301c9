"""What belongs together: if something that was promised to it is lost, nothing more of it counts.

A write that nobody waits for is promised before it is committed. Should its connection be lost and
it cannot be done again, as when another took the last of a budget meanwhile, whoever relied on it
must not go on. A run is one strand: it stands still, and is taken up again from what is stored.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar


class Strand:
    """Everything that is written for one purpose, wherever it is asked for."""

    __slots__ = ("lost",)

    def __init__(self) -> None:
        self.lost = False


_HERE: ContextVar[Strand | None] = ContextVar("evoclaw_strand", default=None)


@contextmanager
def one_strand() -> Generator[Strand]:
    """All that is written in the block, and by the tasks that it begins, belongs together."""
    strand = Strand()
    token = _HERE.set(strand)
    try:
        yield strand
    finally:
        _HERE.reset(token)


def strand_here() -> Strand | None:
    """What a write belongs to that is asked for here."""
    return _HERE.get()
