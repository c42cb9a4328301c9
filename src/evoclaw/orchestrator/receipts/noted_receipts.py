"""Receipts of results that other orchestrators take: remembered without being verified.

A later receipt of the chain that has the hash of one proves it. The signature of one is verified
only if it contradicts another receipt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from contextlib import suppress

import msgspec

from evoclaw.transport.wire import Report
from evoclaw.trust.receipts import (
    Receipt,
    ReceiptRefused,
    SignedReceipt,
    read_receipt,
    read_unverified_receipt,
)

MAX_NOTED_RECEIPTS = 16
"""Of one device in memory; what is forgotten is read from the store."""


class NotedReceipts:
    """The last receipts of each device that this process has not verified."""

    def __init__(self) -> None:
        self._noted: dict[str, OrderedDict[str, tuple[Receipt, SignedReceipt]]] = {}
        """By device and hash."""

    def note(self, report: Report) -> None:
        """Remember the receipt of a report, if it has one."""
        try:
            receipt, signed = read_unverified_receipt(report.payload.get("receipt"))
        except ReceiptRefused:
            return
        if receipt.counter and receipt.agent_id == report.agent_id:
            noted = self._noted.setdefault(report.agent_id, OrderedDict())
            noted[signed.hash] = receipt, signed
            if len(noted) > MAX_NOTED_RECEIPTS:
                noted.popitem(last=False)

    def forget(self, agent_id: str, hash: str) -> None:
        """Forget a receipt that is proven."""
        del self._noted[agent_id][hash]

    def proven_by(self, receipt: Receipt) -> list[tuple[Receipt, str]]:
        """The receipts before a verified one, and their hashes: the next one has it; last first."""
        found = list[tuple[Receipt, str]]()
        noted = self._noted.get(receipt.agent_id)
        while noted is not None and (entry := noted.get(receipt.prev)) is not None:
            before, _ = entry
            if before.chain != receipt.chain or before.counter != receipt.counter - 1:
                break
            found.append((before, receipt.prev))
            receipt = before
        return found

    def contradicting(
        self, receipt: Receipt, hash: str, known: Container[int]
    ) -> dict[int, tuple[str, str]]:
        """Validly signed receipts that do not fit to this one, beside the known positions.

        By position: the hash, and the hash of the previous receipt.
        """
        found: dict[int, tuple[str, str]] = {}
        noted = self._noted.get(receipt.agent_id)
        for other_hash, (other, signed) in noted.items() if noted else ():
            distance = other.counter - receipt.counter
            fits = {-1: other_hash == receipt.prev, 0: other_hash == hash, 1: other.prev == hash}
            if other.chain != receipt.chain or other.counter in known or fits.get(distance, True):
                continue
            with suppress(ReceiptRefused):
                read_receipt(msgspec.to_builtins(signed), key=receipt.key)
                found[other.counter] = other_hash, other.prev
        return found
