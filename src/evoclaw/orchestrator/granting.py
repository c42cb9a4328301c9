"""Signing what edges are asked to do."""

from __future__ import annotations

import time

from evoclaw.core.tools import Call
from evoclaw.governance.grants import Grant, Signer
from evoclaw.transport.wire import Command, digest

LIFE = 86_400.0
"""Seconds that a grant holds: as long as an edge may be away and the command wait for it."""


class Granting:
    """Grants in the name of one orchestrator."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def __call__(self, agent_id: str, command: Command, call: Call | None) -> str:
        """Let this agent do this, with these arguments, for this request."""
        arguments = command.payload if call is None else call.arguments
        return self._signer.sign(
            Grant(
                agent=agent_id,
                tenant=command.tenant,
                request_id=command.request_id,
                run_id=command.run_id,
                epoch=command.epoch,
                tool=command.command if call is None else call.name,
                args_sha256=digest(arguments),
                permissions=tuple(sorted(call.tool.permissions)) if call is not None else (),
                issued_at=time.time(),
                life_s=LIFE,
            )
        )
