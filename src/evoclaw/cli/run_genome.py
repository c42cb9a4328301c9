"""The genome of `evoclaw run`: that of the agent `evoclaw` on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from msgspec import UNSET

from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Record, RunResumed, RunStarted
from evoclaw.core.genome import CONFIGURED, Genome

NO_GENOME = "none"
"""As configured, whatever the current genome is."""


async def genome_of_run(
    chosen: str | None, records: Sequence[Record], *, is_new_here: bool
) -> Genome:
    """The genome of a run; one that is resumed keeps the genome that it has.

    Args:
        chosen: The option `--genome`: a version, or `none`.
        records: Those of a run that is resumed.
        is_new_here: Whether the run is new, and on this machine.
    """
    from evoclaw.wiring.evaluation import genome_for_run

    if chosen is not None and not is_new_here:
        raise ConfigError("--genome is for new runs on this machine, without --on and --resume")
    if chosen is not None and chosen != NO_GENOME and not chosen.isdecimal():
        raise ConfigError(f"--genome must be a version or `none`, not {chosen[:40]!r}")
    if digest := _recorded(records):
        return await genome_for_run(os.environ, None, digest)
    if chosen == NO_GENOME or not is_new_here:
        return CONFIGURED
    return await genome_for_run(os.environ, None if chosen is None else int(chosen))


def _recorded(records: Sequence[Record]) -> str:
    """The digest of the genome of a recorded run; empty: as configured."""
    for record in reversed(records):
        if isinstance(record.event, RunStarted | RunResumed):
            genome = record.event.settings.genome
            return "" if genome is UNSET else genome
    return ""
