"""`NoCage`: none, for who asks for none in so many words."""

from __future__ import annotations

from collections.abc import Sequence

from evoclaw.core.sandboxes import Confines


class NoCage:
    """Confines nothing. Never a stand-in for an engine that is missing."""

    name = "none"

    def missing(self) -> str:
        """Nothing is."""
        return ""

    def command(self, confines: Confines, argv: Sequence[str], cwd: str) -> tuple[str, ...]:
        """The same command."""
        return tuple(argv)
