"""Receipts for calls that ran on this machine, without an edge: one chain for all its processes."""

from __future__ import annotations

from secrets import token_hex

from msgspec.structs import replace

from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.tools import Call
from evoclaw.governance.receipts import DeviceKey, Facts, describe, read
from evoclaw.orchestrator.proofs.receipts import kept_as, seen
from evoclaw.store.calls.receipts import Kept, Place, ReceiptStore
from evoclaw.transport.outcomes import to_payload
from evoclaw.transport.wire import tool_hash

HERE = "here"
"""The agent id of this machine's own receipts."""


class LocalReceipts:
    """Signs the results of calls that ran on this machine; for `executors.receipted.Receipted`."""

    def __init__(self, key: DeviceKey, store: ReceiptStore, boot_id: str) -> None:
        self._key, self._store, self._boot_id = key, store, boot_id
        self._pinned = False

    async def sign(self, call: Call, result: ToolResult, began: float, ended: float) -> JSON:
        """Add a receipt to this machine's chain; what is said of it beside the result."""
        if not self._pinned:
            await self._store.pin(HERE, self._key.public_key, "here")
            self._pinned = True
        payload = to_payload(result, call.request_id, round((ended - began) * 1000, 3))
        facts = Facts(
            agent_id=HERE,
            boot_id=self._boot_id,
            request_id=call.request_id,
            run_id=call.run_id,
            tenant=call.context.principal.tenant,
            epoch=call.epoch,
            tool=call.name,
            tool_hash=tool_hash(call.tool),
            arguments=call.arguments,
            started_at=began,
            ended_at=ended,
        )
        draft = describe(facts, payload, self._key.public_key)

        def make(place: Place) -> tuple[Kept, Place]:
            key = self._key.public_key
            at = place if place.chain and place.key == key else Place(token_hex(8))
            receipt = replace(draft, chain=at.chain, counter=at.counter + 1, prev=at.hash)
            signed = self._key.sign(receipt)
            kept = kept_as(receipt, signed, ended, tenant=call.context.principal.tenant)
            return kept, Place(at.chain, at.counter + 1, signed.hash, key)

        kept = await self._store.sign(make)
        receipt, signed = read({"body": kept.body, "signature": kept.signature})
        return seen(receipt, signed.hash, "here")
