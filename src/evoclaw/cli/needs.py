"""What the commands need built: the composition root's side of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from evoclaw.core.ports import Approver, Ports
from evoclaw.governance.autonomy import Level


class Wiring(Protocol):
    """Who can build it; imports go down only, so it is handed in."""

    def local_ports(
        self,
        *,
        model: str | None,
        workspace: Path,
        level: Level,
        tools: Sequence[str] | None,
        approver: Approver,
        env: Mapping[str, str],
    ) -> AbstractAsyncContextManager[Ports]:
        """What a run on this machine is given."""
        ...
