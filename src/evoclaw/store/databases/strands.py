"""Write scopes: the writes that fail together when a deferred commit is lost."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar


class WriteScope:
    """Writes that depend on each other; `lost` once one of them could not be committed.

    A deferred write returns before it is committed. If its connection is lost and the write cannot
    be repeated, as when another process used up a budget meanwhile, no later write of its scope may
    succeed. A run is one write scope: it is suspended, and resumes from what is stored.
    """

    __slots__ = ("lost",)

    def __init__(self) -> None:
        self.lost = False


_CURRENT_SCOPE: ContextVar[WriteScope | None] = ContextVar("evoclaw_write_scope", default=None)


@contextmanager
def write_scope() -> Generator[WriteScope]:
    """Put all writes of the block, and of the tasks it starts, into one new scope."""
    strand = WriteScope()
    token = _CURRENT_SCOPE.set(strand)
    try:
        yield strand
    finally:
        _CURRENT_SCOPE.reset(token)


def current_write_scope() -> WriteScope | None:
    """The scope of a write that is requested here."""
    return _CURRENT_SCOPE.get()
