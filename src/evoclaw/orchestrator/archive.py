"""Receipts handed out: with the keys they are checked by, and what they are of."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence

import msgspec

from evoclaw.core.labels import LOCAL
from evoclaw.core.messages import JSON
from evoclaw.store.receipts import Kept, Pin, ReceiptStore, TenantReceipts
from evoclaw.transport.outbox import Kept as Asked
from evoclaw.transport.outbox import Outbox
from evoclaw.transport.wire import Outcome, WireError, arguments_of, read_command


class ReceiptArchive:
    """A book and the commands that its receipts are of, as long as those are kept.

    It holds those of all tenants, for whoever has the machine; a tenant is given `of` its own.
    """

    def __init__(self, store: ReceiptStore, outbox: Outbox | None = None) -> None:
        self.store, self._outbox = store, outbox

    def of(self, tenant: str) -> TenantArchive:
        """What one tenant may see of it."""
        return TenantArchive(self.store, self._outbox, tenant)

    async def bundle(
        self, *, agent_id: str = "", run_id: str = ""
    ) -> AsyncGenerator[dict[str, JSON]]:
        """The lines of a file for the verifier: keys, then receipts, with what they are of.

        Args:
            agent_id: Only this device's.
            run_id: Only those of this run: then the chains have gaps.
        """
        pins = [pin for pin in await self.store.pins() if agent_id in ("", pin.agent_id)]
        kept = await self.store.listed(agent_id=agent_id, run_id=run_id)
        async for line in _bundle(pins, kept, self._outbox):
            yield line


class TenantArchive:
    """The receipts of what one tenant asked for, and its commands."""

    def __init__(self, store: ReceiptStore, outbox: Outbox | None, tenant: str) -> None:
        self.receipts: TenantReceipts = store.of(tenant)
        self._store, self._outbox = store, outbox

    async def bundle(
        self, *, agent_id: str = "", run_id: str = ""
    ) -> AsyncGenerator[dict[str, JSON]]:
        """The lines of a file for the verifier; chains have gaps where other tenants asked."""
        kept = await self.receipts.listed(agent_id=agent_id, run_id=run_id)
        signers = {one.agent_id for one in kept}
        pins = [pin for pin in await self._store.pins() if pin.agent_id in signers]
        async for line in _bundle(pins, kept, self._outbox):
            yield line


async def _bundle(
    pins: Iterable[Pin], receipts: Sequence[Kept], outbox: Outbox | None
) -> AsyncGenerator[dict[str, JSON]]:
    for pin in pins:
        yield {"type": "key", "agent_id": pin.agent_id, "key": pin.key, "trust": pin.trust}
    for kept in receipts:
        if kept.flaw:
            continue
        line: dict[str, JSON] = {
            "type": "receipt",
            "body": kept.body,
            "signature": kept.signature,
        }
        row = None if outbox is None else await outbox.get(kept.request_id)
        if row is not None and row.agent_id == kept.agent_id:
            line |= _proved(row, kept.tenant)
        yield line


def _proved(row: Asked, tenant: str) -> dict[str, JSON]:
    """The arguments and the result that a receipt is of; nothing if another tenant asked."""
    try:
        command = read_command(row.payload)
        found: dict[str, JSON] = {"arguments": arguments_of(command)}
    except WireError:
        return {}
    if (command.tenant or LOCAL.tenant) != tenant:
        return {}
    outcome = None if row.outcome is None else msgspec.json.decode(row.outcome, type=Outcome)
    if outcome is not None and outcome.receipt is not None:
        told: dict[str, JSON] = msgspec.to_builtins(outcome)
        found["result"] = {name: told[name] for name in told if name not in ("receipt", "checked")}
    return found
