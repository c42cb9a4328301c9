"""`SignedGrantCheck`: verifies that a trusted orchestrator granted a command."""

from __future__ import annotations

from collections.abc import Mapping

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.edge.device import OrchestratorClock
from evoclaw.transport.wire import Command, digest
from evoclaw.trust.grants import GrantRefusal, GrantRefused, Verifier


class SignedGrantCheck:
    """Checks the grant of every command that runs something, offline."""

    def __init__(
        self,
        agent_id: str,
        verifier: Verifier,
        clock: OrchestratorClock,
        *,
        only: Mapping[str, Verifier] | None = None,
    ) -> None:
        """`only` names other verifiers for some commands."""
        self._agent_id, self._verifier, self._clock = agent_id, verifier, clock
        self._only = dict(only or {})

    def __call__(
        self,
        command: Command,
        tool: str | None = None,
        arguments: JSON = None,
        permissions: frozenset[str] = frozenset(),
    ) -> None:
        """Raise `ToolFailure` unless exactly this command was granted to this device."""
        verifier = self._only.get(command.command, self._verifier)
        try:
            grant = verifier.verify(
                command.grant,
                agent=self._agent_id,
                tool=command.command if tool is None else tool,
                args_sha256=digest(command.payload if tool is None else arguments),
                request_id=command.request_id,
                permissions=permissions,
                now=self._clock.now(),
            )
            if (grant.run_id, grant.epoch) != (command.run_id, command.epoch):
                raise GrantRefused(
                    GrantRefusal.OTHER_REQUEST, "it was given for another run or epoch"
                )
        except GrantRefused as refusal:
            text = f"The device refuses the command: {refusal}. Explain to the user."
            raise ToolFailure(ErrorKind.PERMISSION_DENIED, text) from None
