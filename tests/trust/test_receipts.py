"""Receipts as such: written in one way, signed for one purpose, refused for a named reason."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw import verify
from evoclaw.core.canonical_json import canonical, canonical_hash
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.trust.grants import Grant, Signer
from evoclaw.trust.receipts import (
    SIGNATURE_CONTEXT,
    CallFacts,
    DeviceKey,
    Receipt,
    ReceiptFlaw,
    ReceiptRefused,
    bounded_name,
    encode_receipt,
    new_receipt,
    read_receipt,
    result_hash,
    short_id,
)
from tests.support.properties import examples

SEED = bytes(range(32))
PAYLOAD: dict[str, JSON] = {
    "status": "success",
    "tool": "bash",
    "result": "done",
    "stderr": "",
    "exit_code": 0,
    "elapsed_ms": 1.5,
    "request_id": "run.1.0.1",
    "details": {"isolation": "bubblewrap"},
}


def facts(**other: JSON) -> CallFacts:
    usual: dict[str, JSON] = {
        "agent_id": "pi",
        "boot_id": "b1",
        "request_id": "run.1.0.1",
        "run_id": "run",
        "tenant": "",
        "epoch": 1,
        "tool": "bash",
        "tool_hash": "00ff",
        "arguments": {"command": "ls"},
        "started_at": 1.0,
        "ended_at": 2.5,
    }
    return CallFacts(**(usual | other))


def receipt(**other: JSON) -> Receipt:
    return new_receipt(facts(**other), PAYLOAD, DeviceKey(SEED).public_key)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
@settings(max_examples=examples(300), deadline=None)
def test_verifier_and_device_produce_the_same_canonical_json(value: JSON) -> None:
    assert canonical(value).decode() == verify.canonical(value)
    told = json.loads(msgspec.json.encode(value))
    assert canonical_hash(told) == verify.digest(value), "also after a journey over the wire"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"), (-0.0, "0"), (1e16, "10000000000000000"), (1e21, "1e+21"), (1.5e-7, "1.5e-7"),
        (1e-6, "0.000001"), (1.2345678901234568e20, "123456789012345680000"), (5e-324, "5e-324"),
        (2**64, "18446744073709551616"), (float("nan"), "null"), (True, "true"),
        ({"b": 1, "a": [None, "é\n"]}, '{"a":[null,"é\\n"],"b":1}'),
        ({"\U0001f600": 1, "\ufb33": 2}, '{"\U0001f600":1,"\ufb33":2}'),
    ],
)  # fmt: skip
def test_canonical_json_has_the_expected_encoding(value: JSON, text: str) -> None:
    assert canonical(value).decode() == text


@given(st.text(min_size=1), st.integers(1, 400))
@settings(max_examples=examples(100), deadline=None)
def test_long_and_short_texts_are_encoded_alike(text: str, many: int) -> None:
    assert canonical(text * many).decode() == verify.canonical(text * many)


def test_values_that_are_not_json_are_refused() -> None:
    with pytest.raises(TypeError, match="object is not JSON"):
        canonical({"a": object()})
    with pytest.raises(ValueError, match="unpaired surrogate"):
        canonical("\ud800")
    with pytest.raises(ValueError, match="unpaired surrogate"):
        canonical("\ud800" * 1000)


def test_empty_optional_members_do_not_change_the_result_hash() -> None:
    assert result_hash(PAYLOAD) == result_hash({**PAYLOAD, "blocks": None, "truncated": False})
    assert result_hash(PAYLOAD) == result_hash({**PAYLOAD, "receipt": {"body": "x"}})
    assert result_hash(PAYLOAD) != result_hash({**PAYLOAD, "exit_code": None})
    assert result_hash(PAYLOAD) == verify.result_digest(PAYLOAD)


def test_a_receipt_contains_the_facts_of_the_result() -> None:
    found = receipt()
    assert (found.status, found.exit_code, found.isolation) == ("success", 0, "bubblewrap")
    assert (found.started_at, found.ended_at) == (1000, 2500)
    assert found.args_sha256 == canonical_hash({"command": "ls"})
    assert receipt(arguments=None).args_sha256 == ""
    assert receipt(grant="g").grant_sha256 and not found.grant_sha256


def test_a_long_name_is_replaced_by_its_hash() -> None:
    assert bounded_name("a" * 200) == "a" * 200
    assert bounded_name("a" * 201).startswith("sha256:")
    assert len(receipt(tool="x" * 10_000, run_id="y" * 10_000).tool) == 71


def test_a_signed_receipt_round_trips() -> None:
    key = DeviceKey(SEED)
    signed = key.sign(receipt())
    found, again = read_receipt(
        {"body": signed.body, "signature": signed.signature}, key=key.public_key
    )
    assert found == receipt()
    assert again.hash == signed.hash
    assert short_id(3, signed.hash) == f"r3-{signed.hash[:8]}"
    assert canonical(json.loads(signed.body)).decode() == signed.body


def flaw(signed: JSON, key: str | None = None) -> ReceiptFlaw:
    with pytest.raises(ReceiptRefused) as refused:
        read_receipt(signed, key=key)
    return refused.value.flaw


def test_each_receipt_flaw_has_its_own_code() -> None:
    key, other = DeviceKey(SEED), DeviceKey(bytes(32))
    signed = key.sign(receipt())
    good: dict[str, JSON] = {"body": signed.body, "signature": signed.signature}
    assert flaw(None) is ReceiptFlaw.ABSENT
    assert flaw("text") is ReceiptFlaw.MALFORMED
    assert flaw({**good, "body": "{}"}) is ReceiptFlaw.MALFORMED
    assert flaw({**good, "body": " " + signed.body}) is ReceiptFlaw.MALFORMED
    assert flaw({**good, "body": signed.body.replace('"v":1', '"v":2')}) is ReceiptFlaw.MALFORMED
    assert flaw({**good, "body": "x" * 40_000}) is ReceiptFlaw.MALFORMED
    assert flaw(good, other.public_key) is ReceiptFlaw.OTHER_KEY
    assert flaw({**good, "body": signed.body.replace("bash", "bush")}) is ReceiptFlaw.BAD_SIGNATURE
    foreign = other.sign(receipt())
    assert flaw({**good, "signature": foreign.signature}) is ReceiptFlaw.BAD_SIGNATURE
    assert flaw({**good, "signature": "!"}) is ReceiptFlaw.MALFORMED


def test_a_grant_signature_is_not_valid_for_a_receipt() -> None:
    grant = Grant(agent="pi", request_id="r", tool="t", args_sha256="", issued_at=0.0, life_s=1.0)
    _, _, signature = Signer(SEED).sign(grant).partition(".")
    body = encode_receipt(receipt()).decode()
    assert flaw({"body": body, "signature": signature}) is ReceiptFlaw.BAD_SIGNATURE
    assert SIGNATURE_CONTEXT != b"evoclaw grant 1\n"


def test_a_device_key_is_created_once_with_private_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "device.key"
    first = DeviceKey.load_or_create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert DeviceKey.load_or_create(path).public_key == first.public_key
    assert list(path.parent.iterdir()) == [path]


def test_a_device_key_readable_by_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "device.key"
    DeviceKey.load_or_create(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        DeviceKey.load_or_create(path)


@pytest.mark.parametrize("content", ["", "short", "*" * 43])
def test_a_damaged_device_key_says_what_to_do(tmp_path: Path, content: str) -> None:
    path = tmp_path / "device.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="restore it from a backup"):
        DeviceKey.load_or_create(path)
