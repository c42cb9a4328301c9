"""Receipts: a device's signature under how a call ended, chained to the previous receipt.

Anyone can verify a receipt with the device's public key and `evoclaw/verify.py`, which shares no
code with this file: a receipt that is signed here and fails there is a bug in one of the two.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.json import encode

from evoclaw.core.canonical_json import canonical, canonical_hash
from evoclaw.core.encoding import decode_base64url, encode_base64url
from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON
from evoclaw.trust import ed25519
from evoclaw.trust.keys import load_or_create_seed

SIGNATURE_CONTEXT = b"evoclaw receipt 1\n"
"""Signed together with the body, so that no other signature of the key passes for a receipt."""
GENOME_CONTEXT = b"evoclaw genome 1\n"
"""The same for entries of lineages."""
APPROVAL_CONTEXT = b"evoclaw approval 1\n"
"""The same for approvals of candidates of a genome: the hash of the proposal follows."""
MAX_RECEIPT_CHARS = 32_768
"""Maximum length of a receipt's body; a longer one is refused unread."""
MAX_NAME_CHARS = 200
"""Maximum length of a name in a receipt; a longer one is replaced by its hash."""
UNHASHED_KEYS = ("receipt", "checked")
"""Keys of a report's payload that are not part of the result."""


class Receipt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a device signs. Only texts and integers, so that there is one encoding."""

    v: int
    agent_id: str
    key: str
    """The public key of the device that claims to sign."""
    chain: str
    """The id of the chain; a device that lost its journal or its key starts a new one."""
    counter: int
    """The position in the chain, from 1; 0 is outside: a refusal that the journal does not hold."""
    prev: str
    """The hash of the previous receipt; empty for the first, and outside the chain."""
    boot_id: str
    request_id: str
    run_id: str
    tenant: str
    epoch: int
    tool: str
    tool_hash: str
    """The hash of the tool as the device had it; empty if it has no such tool."""
    args_sha256: str
    """The hash of the canonical arguments; empty if the call itself never arrived."""
    result_sha256: str
    """The hash of the canonical result; see `result_hash`."""
    status: str
    """`success` or `error`."""
    exit_code: int | None
    error_type: str
    isolation: str
    """The sandbox that the call ran in, if the device reported it."""
    started_at: int | None
    """Milliseconds by the device's clock, like `ended_at`; None if it never started here."""
    ended_at: int
    grant_sha256: str
    """The hash of the grant of the call; empty if there was none."""


class SignedReceipt(Struct, frozen=True):
    """A receipt as sent and stored."""

    body: str
    """Canonical JSON: exactly these characters are signed."""
    signature: str

    @property
    def hash(self) -> str:
        """Identifies the receipt; the next receipt refers to it."""
        return sha256(self.body.encode()).hexdigest()


class ReceiptFlaw(StrEnum):
    """Why a receipt is refused."""

    ABSENT = "absent"
    MALFORMED = "malformed"
    OTHER_KEY = "other_key"
    BAD_SIGNATURE = "bad_signature"
    OTHER_AGENT = "other_agent"
    OTHER_REQUEST = "other_request"
    OTHER_ARGUMENTS = "other_arguments"
    OTHER_RESULT = "other_result"
    FORK = "fork"
    """Two different receipts at one position of a chain, or a wrong previous hash."""


class ReceiptRefused(EvoClawError):
    """The receipt does not prove the result that it came with."""

    def __init__(self, flaw: ReceiptFlaw, reason: str) -> None:
        super().__init__(reason)
        self.flaw, self.reason = flaw, reason


def short_id(counter: int, hash: str) -> str:
    """The short id of a receipt, for people and models."""
    return f"r{counter}-{hash[:8]}"


def result_hash(payload: dict[str, JSON]) -> str:
    """The hash of a result as it was reported.

    It covers the report's payload without the receipt itself, and without empty members (null,
    false, an empty text, list or object), so that the sent and the stored form hash the same.
    """
    return canonical_hash(
        {
            name: value
            for name, value in payload.items()
            if name not in UNHASHED_KEYS
            and not (value is None or value is False or value in ("", [], {}))
        }
    )


def bounded_name(text: str) -> str:
    """A name for a receipt; one that is too long is replaced by its hash."""
    if len(text) <= MAX_NAME_CHARS:
        return text
    return "sha256:" + sha256(text.encode(errors="replace")).hexdigest()


class CallFacts(Struct, frozen=True, kw_only=True):
    """What a device knows about a call beside its result."""

    agent_id: str
    boot_id: str
    request_id: str
    run_id: str
    tenant: str
    epoch: int
    tool: str
    tool_hash: str
    arguments: JSON
    """None if the call itself never arrived."""
    started_at: float | None
    """Unix seconds, like `ended_at`."""
    ended_at: float
    grant: str = ""


def new_receipt(facts: CallFacts, payload: dict[str, JSON], key: str) -> Receipt:
    """A new receipt, not yet in a chain; raises as the JSON encoder does for a bad payload."""
    # Encode and decode first: the signature covers the values as JSON carries them.
    report: dict[str, JSON] = msgspec.json.decode(encode(payload))
    details: dict[str, JSON] = report.get("details") or {}
    code = report.get("exit_code")
    isolation = details.get("isolation") or ""
    if not isinstance(isolation, str):
        isolation = canonical(isolation).decode()
    started = facts.started_at
    return Receipt(
        v=1,
        agent_id=facts.agent_id,
        key=key,
        chain="",
        counter=0,
        prev="",
        boot_id=facts.boot_id,
        request_id=bounded_name(facts.request_id),
        run_id=bounded_name(facts.run_id),
        tenant=bounded_name(facts.tenant),
        epoch=facts.epoch,
        tool=bounded_name(facts.tool),
        tool_hash=facts.tool_hash,
        args_sha256=_hash_if_any(facts.arguments),
        result_sha256=result_hash(report),
        status=bounded_name(str(report.get("status", ""))),
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        error_type=bounded_name(str(report.get("error_type", ""))),
        isolation=bounded_name(isolation),
        started_at=None if started is None else round(started * 1000),
        ended_at=round(facts.ended_at * 1000),
        grant_sha256=sha256(facts.grant.encode()).hexdigest() if facts.grant else "",
    )


def _hash_if_any(arguments: JSON) -> str:
    try:
        return "" if arguments is None else canonical_hash(arguments)
    except RecursionError:
        return ""  # nested too deep for any tool, so there is nothing to prove


class DeviceKey:
    """The key with which a device signs its receipts; it never leaves its file."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed

    @cached_property
    def _key(self) -> ed25519.SigningKey:
        return ed25519.signing_key(self._seed)

    @cached_property
    def public_key(self) -> str:
        """The public key that verifies its receipts: 43 characters, not secret."""
        return encode_base64url(self._key.public_key)

    @classmethod
    def load_or_create(cls, path: Path) -> DeviceKey:
        """Read the key, or create it; processes that do so at the same time get the same key."""
        return cls(
            load_or_create_seed(path, ": then a new chain of receipts starts, under a new key")
        )

    def sign(self, receipt: Receipt) -> SignedReceipt:
        """Sign a receipt."""
        body = encode_receipt(receipt)
        return SignedReceipt(
            body.decode(), encode_base64url(self._key.sign(SIGNATURE_CONTEXT + body))
        )

    def sign_genome(self, entry: bytes) -> str:
        """Sign an entry of a genome's lineage."""
        return encode_base64url(self._key.sign(GENOME_CONTEXT + entry))

    def sign_approval(self, proposal_hash: str) -> str:
        """Sign the approval of a candidate of a genome, by the hash of its proposal."""
        return encode_base64url(self._key.sign(APPROVAL_CONTEXT + proposal_hash.encode()))


def encode_receipt(receipt: Receipt) -> bytes:
    """The bytes that are signed: canonical, since a receipt has only texts and integers."""
    return encode(receipt, order="sorted")


def read_receipt(signed: JSON, *, key: str | None = None) -> tuple[Receipt, SignedReceipt]:
    """Decode and verify a receipt, by this key or else by the key that it names.

    Raises `ReceiptRefused`.
    """
    receipt, found = read_unverified_receipt(signed)
    if key is not None and receipt.key != key:
        text = "the receipt was signed with a key other than the pinned key of this device"
        raise ReceiptRefused(ReceiptFlaw.OTHER_KEY, text)
    if not _signature_valid(receipt.key, found.signature, SIGNATURE_CONTEXT + found.body.encode()):
        text = "the receipt was not signed with the key that it names"
        raise ReceiptRefused(ReceiptFlaw.BAD_SIGNATURE, text)
    return receipt, found


def read_unverified_receipt(signed: JSON) -> tuple[Receipt, SignedReceipt]:
    """Decode a receipt whose signature proves nothing yet; raises `ReceiptRefused`."""
    if signed is None:
        raise ReceiptRefused(ReceiptFlaw.ABSENT, "there is no receipt")
    try:
        found = msgspec.convert(signed, SignedReceipt)
        body = found.body.encode() if len(found.body) <= MAX_RECEIPT_CHARS else b""
        receipt = msgspec.json.decode(body, type=Receipt)
        decode_base64url(found.signature)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ReceiptRefused(ReceiptFlaw.MALFORMED, "the receipt cannot be read") from None
    if receipt.v != 1 or encode_receipt(receipt) != body:
        raise ReceiptRefused(ReceiptFlaw.MALFORMED, "the receipt is not in canonical form")
    return receipt, found


def is_approval_valid(key: str, signature: str, proposal_hash: str) -> bool:
    """Whether the owner of a public key signed the approval of this proposal."""
    return _signature_valid(key, signature, APPROVAL_CONTEXT + proposal_hash.encode())


def _signature_valid(key: str, signature: str, message: bytes) -> bool:
    try:
        return ed25519.verify(decode_base64url(key), decode_base64url(signature), message)
    except ValueError:  # not a key
        return False
