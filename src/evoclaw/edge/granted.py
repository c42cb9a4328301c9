"""Whether an orchestrator that this device trusts stands behind a command."""

from __future__ import annotations

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.tools import Call
from evoclaw.edge.clock import OrchestratorClock
from evoclaw.governance.grants import GrantRefused, Refusal, Verifier
from evoclaw.transport.wire import Command, digest


class Granted:
    """Checks the grant of every command that does something; needs nobody else to do so."""

    def __init__(self, agent_id: str, verifier: Verifier, clock: OrchestratorClock) -> None:
        self._agent_id, self._verifier, self._clock = agent_id, verifier, clock

    def __call__(self, command: Command, call: Call | None = None) -> None:
        """Raise `ToolFailure` unless this very command was granted to this very device."""
        arguments = command.payload if call is None else call.arguments
        try:
            grant = self._verifier.verify(
                command.grant,
                agent=self._agent_id,
                tool=command.command if call is None else call.name,
                args_sha256=digest(arguments),
                request_id=command.request_id,
                permissions=frozenset() if call is None else call.tool.permissions,
                now=self._clock.now(),
            )
            if (grant.run_id, grant.epoch) != (command.run_id, command.epoch):
                raise GrantRefused(Refusal.OTHER_REQUEST, "it was given for another run or epoch")
        except GrantRefused as refusal:
            text = f"The device refuses the command: {refusal}. Explain to the user."
            raise ToolFailure(ErrorKind.PERMISSION_DENIED, text) from None
