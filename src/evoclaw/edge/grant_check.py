"""`SignedGrantCheck`: verifies that a trusted orchestrator granted a command."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evoclaw.core.encoding import json_digest
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.edge.device import OrchestratorClock
from evoclaw.edge.plans import commands_within
from evoclaw.transport.wire import Command, WireError, changed_fields
from evoclaw.trust.grants import Grant, GrantRefusal, GrantRefused, Verifier

CLOCK_COMMANDS = frozenset({"welcome"})
"""They tell the time by which expiry is judged; they are fresh if they answer this boot's hello."""
OUTDATED_TEXT = (
    "the orchestrator is older than this device, and its grants do not cover the whole command; "
    "update the orchestrator"
)
NO_CLOCK_TEXT = (
    "the device does not know the orchestrator's time, because no signed welcome has arrived; "
    "check the connection and try again"
)


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
        """`only` has the verifiers of commands that not every trusted key may sign."""
        self._agent_id, self._verifier, self._clock = agent_id, verifier, clock
        self._only = dict(only or {})

    def __call__(
        self,
        command: Command,
        tool: str | None = None,
        arguments: JSON = None,
        permissions: frozenset[str] = frozenset(),
    ) -> Grant | None:
        """Return the grant; `ToolFailure` unless exactly this command was granted to this device.

        The grant covers every field of the command: a broker that changes any of them, even one
        that this command does not use, makes it invalid.
        """
        try:
            grants = [
                self._verify(
                    self._only.get(name, self._verifier), command, tool, arguments, permissions
                )
                for name in commands_within(command)
            ]
        except GrantRefused as refusal:
            text = f"The device refuses the command: {refusal}. Explain to the user."
            raise ToolFailure(ErrorKind.PERMISSION_DENIED, text) from None
        return grants[0]

    def _verify(
        self,
        verifier: Verifier,
        command: Command,
        tool: str | None,
        arguments: JSON,
        permissions: frozenset[str],
    ) -> Grant:
        sets_clock = command.command in CLOCK_COMMANDS
        grant = verifier.verify(
            command.grant,
            agent=self._agent_id,
            tool=command.command if tool is None else tool,
            args_sha256=json_digest(command.payload if tool is None else arguments),
            request_id=command.request_id,
            permissions=permissions,
            now=-math.inf if sets_clock else self._clock.now(),
        )
        _compare(command, grant)
        if not (sets_clock or self._clock.is_set):
            raise GrantRefused(GrantRefusal.NO_CLOCK, NO_CLOCK_TEXT)
        return grant


def _compare(command: Command, grant: Grant) -> None:
    """Raise `GrantRefused` if any field of the command is not as it was signed."""
    if grant.fields is None or not grant.payload_sha256:
        raise GrantRefused(GrantRefusal.OUTDATED, OUTDATED_TEXT)
    if (grant.run_id, grant.epoch) != (command.run_id, command.epoch):
        raise GrantRefused(GrantRefusal.OTHER_REQUEST, "the grant is for another run or epoch")
    try:
        changed = changed_fields(command, grant.fields)
    except WireError as problem:
        raise GrantRefused(GrantRefusal.MALFORMED, f"the grant cannot be read: {problem}") from None
    if grant.tenant != command.tenant:
        changed.append("tenant")
    if grant.payload_sha256 != json_digest(command.payload):
        changed.append("payload")
    if changed:
        raise GrantRefused(
            GrantRefusal.OTHER_COMMAND,
            f"changed after it was signed: {', '.join(changed)}; look for a broker or a proxy "
            "that rewrites messages",
        )
