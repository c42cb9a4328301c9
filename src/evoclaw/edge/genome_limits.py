"""The genome's limit on how long one call may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from evoclaw.core.pipeline import OfferStep
from evoclaw.core.tools import Tool
from evoclaw.edge.genome import Genome


class GenomeTimeouts(OfferStep):
    """Limits the time of every tool to what the genome allows a call."""

    def __init__(self, genome: Callable[[], Genome]) -> None:
        self._genome = genome

    def version(self) -> object:
        """Changes with the genome."""
        return self._genome()

    def offer(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Cut their times."""
        limit = self._genome().call_seconds
        if limit is None:
            return tools
        return [
            replace(
                tool, timeout=min(tool.timeout, limit), max_timeout=min(tool.max_timeout, limit)
            )
            for tool in tools
        ]
