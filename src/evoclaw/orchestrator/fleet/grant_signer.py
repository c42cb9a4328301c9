"""Signs grants: the orchestrator's permission for one command on one edge."""

from __future__ import annotations

from collections.abc import Callable

from evoclaw.core.encoding import json_digest
from evoclaw.core.tools import Call
from evoclaw.transport.clocks import monotonic_wall_clock
from evoclaw.transport.wire import Command, signed_fields
from evoclaw.trust.grants import Grant, Signer

DEFAULT_GRANT_LIFETIME_S = 86_400.0
"""Of a grant for a command without a queue TTL."""
CLOCK_LEEWAY_S = 60.0
"""Added to the queue TTL, as clocks differ."""


class GrantSigner:
    """Signs grants for one orchestrator."""

    def __init__(self, signer: Signer, clock: Callable[[], float] | None = None) -> None:
        self._signer, self._clock = signer, clock or monotonic_wall_clock()

    def __call__(self, agent_id: str, command: Command, call: Call | None) -> str:
        """Sign a grant for exactly this command, as it will be sent, on this edge."""
        arguments = command.payload if call is None else call.arguments
        ttl = command.queue_ttl_ms
        return self._signer.sign(
            Grant(
                agent=agent_id,
                tenant=command.tenant,
                request_id=command.request_id,
                run_id=command.run_id,
                epoch=command.epoch,
                tool=command.command if call is None else call.name,
                args_sha256=json_digest(arguments),
                permissions=tuple(sorted(call.tool.permissions)) if call is not None else (),
                issued_at=self._clock(),
                life_s=DEFAULT_GRANT_LIFETIME_S if ttl is None else ttl / 1000 + CLOCK_LEEWAY_S,
                payload_sha256=json_digest(command.payload),
                fields=signed_fields(command),
            )
        )
