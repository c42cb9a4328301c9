"""Signs receipts for calls on this machine, without an edge: one chain for all its processes."""

from __future__ import annotations

from hashlib import sha256
from secrets import token_hex

from msgspec.structs import replace

from evoclaw.core.messages import JSON, ToolResult
from evoclaw.core.tools import Call
from evoclaw.orchestrator.receipts.verifier import stored_receipt, valid_receipt
from evoclaw.store.calls.receipts import ChainPosition, ReceiptStore, StoredReceipt
from evoclaw.transport.outcomes import to_payload
from evoclaw.transport.wire import tool_hash
from evoclaw.trust.receipts import CallFacts, DeviceKey, new_receipt

LOCAL_AGENT_ID = "here"
"""The agent id of this machine's own receipts, if the store is not shared."""


def agent_id_of(key: DeviceKey) -> str:
    """The agent id of a machine's own receipts in a shared store, derived from its key."""
    return f"{LOCAL_AGENT_ID}-{sha256(key.public_key.encode()).hexdigest()[:8]}"


class LocalReceiptSigner:
    """Signs the results of calls on this machine; for `SignReceipt`."""

    def __init__(
        self,
        key: DeviceKey,
        store: ReceiptStore,
        boot_id: str,
        *,
        shared: bool = False,
        wait: bool = True,
    ) -> None:
        """Sign with a key.

        Args:
            key: Of this machine.
            store: Where its receipts are stored.
            boot_id: Of this process.
            shared: Whether other machines use the same store.
            wait: Whether to wait for the commit of a receipt; if not, storing the result does.
        """
        self._key, self._store, self._boot_id, self._wait = key, store, boot_id, wait
        self._name = agent_id_of(key) if shared else LOCAL_AGENT_ID
        self._pinned = False

    async def sign(self, call: Call, result: ToolResult, started: float, ended: float) -> JSON:
        """Add a receipt to this machine's chain; return the verdict for the result."""
        if not self._pinned:
            await self._store.pin(self._name, self._key.public_key, "here")
            self._pinned = True
        payload = to_payload(result, call.request_id, round((ended - started) * 1000, 3))
        facts = CallFacts(
            agent_id=self._name,
            boot_id=self._boot_id,
            request_id=call.request_id,
            run_id=call.run_id,
            tenant=call.context.principal.tenant,
            epoch=call.epoch,
            tool=call.name,
            tool_hash=tool_hash(call.tool),
            arguments=call.arguments,
            started_at=started,
            ended_at=ended,
        )
        draft = new_receipt(facts, payload, self._key.public_key)
        # Created once: a retried transaction must give the same receipt.
        new_chain = ChainPosition(token_hex(8))

        def make(place: ChainPosition) -> tuple[StoredReceipt, ChainPosition]:
            key = self._key.public_key
            at = place if place.chain and place.key == key else new_chain
            receipt = replace(draft, chain=at.chain, counter=at.counter + 1, prev=at.hash)
            signed = self._key.sign(receipt)
            stored = stored_receipt(receipt, signed, ended, tenant=call.context.principal.tenant)
            return stored, ChainPosition(at.chain, at.counter + 1, signed.hash, key)

        machine = "" if self._name == LOCAL_AGENT_ID else self._name
        stored = await self._store.sign(make, machine=machine, wait=self._wait)
        return valid_receipt(replace(draft, counter=stored.counter), stored.hash, "here")
