"""Posts notifications to the web services that the operator configured."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from evoclaw.core.messages import JSON
from evoclaw.core.redaction import Redactor
from evoclaw.orchestrator.channels.callbacks import Callback
from evoclaw.orchestrator.channels.inbound import Undelivered

PRIVATE_NETWORKS = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "fc00::/7",
)
"""Networks where a service of the operator may be, also without TLS."""


class ServicePost:
    """Posts JSON to one URL; errors quote the response, and never a secret."""

    def __init__(self, name: str, url: str, *, setting: str, secrets: tuple[str, ...] = ()) -> None:
        """Prepare to post.

        Args:
            name: The service, for error messages.
            url: Its URL, which may contain a secret.
            setting: The setting that names the URL.
            secrets: What error messages must not contain.
        """
        self._callback = Callback(
            url, PRIVATE_NETWORKS, name=name, setting=setting, show_response=True
        )
        self._redactor = Redactor((url, *secrets))

    async def json(
        self, body: Mapping[str, JSON], headers: Mapping[str, str] | None = None
    ) -> None:
        """Post an object; raise `Undelivered` unless the service accepts it."""
        await self.bytes(msgspec.json.encode(body), headers or {})

    async def bytes(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Post these bytes."""
        try:
            await self._callback.post(body, headers)
        except Undelivered as problem:
            text = self._redactor.text(str(problem))
            raise Undelivered(
                text,
                final=problem.final,
                retry_after=problem.retry_after,
                status=problem.status,
            ) from None
