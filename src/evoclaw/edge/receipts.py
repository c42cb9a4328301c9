"""Signs each result on the device: the command, its outcome, and the previous receipt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from evoclaw.core.messages import JSON
from evoclaw.core.ports import Executor
from evoclaw.core.tools import Tool
from evoclaw.edge.device import EdgeIdentity
from evoclaw.store.calls.receipts import ChainPosition
from evoclaw.transport.wire import (
    Command,
    Report,
    ReportType,
    arguments_of,
    encode,
    tool_hash,
)
from evoclaw.trust.receipts import CallFacts, Receipt, encode_receipt, new_receipt

if TYPE_CHECKING:
    from evoclaw.trust.receipts import DeviceKey, SignedReceipt

_LARGEST_PLACE = ChainPosition("f" * 16, 2**53, "f" * 64)
_SIGNATURE_CHARS = 150
"""Characters of a signature, and of the JSON around it and the body."""


class Receipts:
    """Makes the receipts of a device."""

    def __init__(self, key: DeviceKey, who: EdgeIdentity, executor: Executor) -> None:
        """Sign for this device; the executor lists its tools."""
        self._key, self._who, self._executor = key, who, executor
        self._tools: Sequence[Tool] | None = None
        self._hashes: dict[str, str] = {}

    def draft(
        self, command: Command, payload: dict[str, JSON], elapsed_ms: float | None
    ) -> ReceiptDraft:
        """A report that is signed later; raises the encoding error of a payload that is not JSON.

        Args:
            command: The command.
            payload: Its outcome, as it will be reported.
            elapsed_ms: How long it ran; None if this process never started it.
        """
        now = time.time()
        tool = payload.get("tool")
        tool = tool if isinstance(tool, str) else ""
        facts = CallFacts(
            agent_id=self._who.agent_id,
            boot_id=self._who.boot_id,
            request_id=command.request_id,
            run_id=command.run_id,
            tenant=command.tenant,
            epoch=command.epoch,
            tool=tool,
            tool_hash=self._tool_hash(tool),
            # Without a name the command never arrived: only its cancellation did.
            arguments=arguments_of(command) if command.command else None,
            started_at=None if elapsed_ms is None else now - elapsed_ms / 1000,
            ended_at=now,
            grant=command.grant,
        )
        receipt = new_receipt(facts, payload, self._key.public_key)
        return ReceiptDraft(self._key, self._who, payload, receipt, round(now, 3))

    def _tool_hash(self, name: str) -> str:
        tools = self._executor.tools()
        if tools is not self._tools:
            self._tools, self._hashes = tools, {tool.name: tool_hash(tool) for tool in tools}
        return self._hashes.get(name, "")


class ReceiptDraft:
    """A report that lacks only its receipt's chain position, which the journal write assigns."""

    def __init__(
        self,
        key: DeviceKey,
        who: EdgeIdentity,
        payload: dict[str, JSON],
        receipt: Receipt,
        timestamp: float,
    ) -> None:
        self._key, self._who, self._payload = key, who, payload
        self._receipt, self._timestamp = receipt, timestamp
        self.report = b""
        """The report as last signed, which is the journaled one."""

    @property
    def size(self) -> int:
        """The maximum size of the report in bytes."""
        body = encode_receipt(self._placed(_LARGEST_PLACE))
        # In the report the body is a JSON string: each quotation mark takes two characters.
        return len(self._encoded(None)) + len(msgspec.json.encode(body.decode())) + _SIGNATURE_CHARS

    def signed_after(self, place: ChainPosition) -> tuple[bytes, ChainPosition]:
        """The report with the next receipt of the chain; another key starts a new chain."""
        key = self._key.public_key
        if not place.chain or place.key != key:
            place = ChainPosition(token_hex(8))
        signed = self._key.sign(self._placed(place))
        self.report = self._encoded(signed)
        return self.report, ChainPosition(place.chain, place.counter + 1, signed.hash, key)

    def outside(self) -> bytes:
        """The report with a receipt outside the chain: it is not stored on the device."""
        self.report = self._encoded(self._key.sign(self._receipt))
        return self.report

    def _placed(self, place: ChainPosition) -> Receipt:
        return replace(self._receipt, chain=place.chain, counter=place.counter + 1, prev=place.hash)

    def _encoded(self, signed: SignedReceipt | None) -> bytes:
        payload = self._payload
        if signed is not None:
            payload = {**payload, "receipt": {"body": signed.body, "signature": signed.signature}}
        kind = ReportType.RESULT if payload["status"] == "success" else ReportType.ERROR
        who = self._who
        return encode(Report(who.agent_id, who.agent_type, kind, payload, self._timestamp))
