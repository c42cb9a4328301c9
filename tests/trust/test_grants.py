from __future__ import annotations

import multiprocessing
import stat
import subprocess
import sys
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.errors import ConfigError
from evoclaw.trust.grants import (
    MAX_GRANT_CHARS,
    Grant,
    GrantRefusal,
    GrantRefused,
    Signer,
    Verifier,
)

NOW = 1_000_000.0
SIGNER = Signer(b"s" * 32)
GRANT = Grant(
    agent="pi",
    tenant="home",
    request_id="r.1.0.1",
    run_id="r",
    epoch=3,
    tool="bash",
    args_sha256="ab" * 32,
    permissions=("shell", "network"),
    sandbox="bubblewrap",
    budget={"calls": 7, "seconds": 12.5},
    issued_at=NOW,
    life_s=60,
)
TEXT = SIGNER.sign(GRANT)


def verify(
    text: str = TEXT,
    *,
    verifier: Verifier | None = None,
    agent: str = "pi",
    tool: str = "bash",
    args_sha256: str = "ab" * 32,
    request_id: str = "r.1.0.1",
    permissions: frozenset[str] = frozenset({"shell"}),
    now: float = NOW + 1,
) -> Grant:
    return (verifier or Verifier(SIGNER.public_key)).verify(
        text,
        agent=agent,
        tool=tool,
        args_sha256=args_sha256,
        request_id=request_id,
        permissions=permissions,
        now=now,
    )


def refusal(text: str = TEXT, **asked: Any) -> GrantRefusal:
    with pytest.raises(GrantRefused) as refused:
        verify(text, **asked)
    assert str(refused.value) == refused.value.reason
    return refused.value.code


def test_a_grant_is_valid_for_the_call_it_names() -> None:
    assert verify() == GRANT
    assert verify(permissions=frozenset({"shell", "network"})) == GRANT
    assert verify(permissions=frozenset()) == GRANT


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"agent": "desktop"}, GrantRefusal.OTHER_AGENT),
        ({"tool": "write"}, GrantRefusal.OTHER_TOOL),
        ({"args_sha256": "cd" * 32}, GrantRefusal.OTHER_ARGUMENTS),
        ({"args_sha256": ""}, GrantRefusal.OTHER_ARGUMENTS),
        ({"request_id": "r.1.0.2"}, GrantRefusal.OTHER_REQUEST),
        ({"permissions": frozenset({"shell", "git"})}, GrantRefusal.NOT_PERMITTED),
        ({"now": NOW + 60}, GrantRefusal.EXPIRED),
        ({"now": NOW + 3 * 86_400}, GrantRefusal.EXPIRED),
        ({"now": float("nan")}, GrantRefusal.EXPIRED),
    ],
)
def test_a_grant_is_refused_for_any_other_call(asked: dict[str, Any], code: GrantRefusal) -> None:
    assert refusal(**asked) is code


def test_a_small_clock_skew_is_tolerated() -> None:
    assert verify(now=NOW - 5) == GRANT


def test_a_refused_grant_names_the_missing_permissions() -> None:
    with pytest.raises(GrantRefused, match="does not permit device, git"):
        verify(permissions=frozenset({"git", "shell", "device"}))


@given(st.integers(0, len(TEXT) - 1), st.characters(codec="utf-8"))
def test_a_grant_with_one_changed_character_is_refused(place: int, letter: str) -> None:
    changed = TEXT[:place] + letter + TEXT[place + 1 :]

    if changed != TEXT:
        assert refusal(changed) in (GrantRefusal.MALFORMED, GrantRefusal.BAD_SIGNATURE)


def test_a_grant_with_any_flipped_bit_is_refused() -> None:
    for place, letter in enumerate(TEXT):
        for bit in range(7):
            changed = TEXT[:place] + chr(ord(letter) ^ 1 << bit) + TEXT[place + 1 :]
            assert refusal(changed) in (GrantRefusal.MALFORMED, GrantRefusal.BAD_SIGNATURE), changed


@given(st.text() | st.binary().map(lambda data: urlsafe_b64encode(data).decode()))
def test_random_text_is_refused_as_a_grant(text: str) -> None:
    assert refusal(text) in (GrantRefusal.MALFORMED, GrantRefusal.BAD_SIGNATURE)


def test_a_truncated_repeated_or_oversized_grant_is_refused() -> None:
    payload, _, signature = TEXT.partition(".")
    longer = SIGNER.sign(msgspec.structs.replace(GRANT, sandbox="x" * MAX_GRANT_CHARS))
    texts = ("", ".", payload, f"{payload}.", f".{signature}", f"{TEXT}.{signature}", f"{TEXT}=")

    assert {refusal(text) for text in texts} <= {GrantRefusal.MALFORMED, GrantRefusal.BAD_SIGNATURE}
    assert refusal(longer) is GrantRefusal.MALFORMED


def test_a_grant_of_another_key_is_refused_unless_trusted() -> None:
    old, new = Signer(b"o" * 32), Signer(b"n" * 32)
    both = Verifier(new.public_key, old.public_key)

    assert verify(old.sign(GRANT), verifier=both) == GRANT
    assert verify(new.sign(GRANT), verifier=both) == GRANT
    assert refusal(SIGNER.sign(GRANT), verifier=both) is GrantRefusal.BAD_SIGNATURE


def test_a_signature_over_the_bare_payload_is_refused() -> None:
    """The same key may sign other things: none of them passes for a grant."""
    payload = msgspec.json.encode(GRANT)
    key = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
    bare = urlsafe_b64encode(key.sign(payload)).rstrip(b"=").decode()

    assert refusal(f"{TEXT.partition('.')[0]}.{bare}") is GrantRefusal.BAD_SIGNATURE


def test_a_grant_with_unknown_fields_is_accepted() -> None:
    class Newer(Grant, frozen=True, kw_only=True):
        colour: str = "?"

    newer = msgspec.convert({**msgspec.to_builtins(GRANT), "colour": "blue"}, Newer)

    assert verify(SIGNER.sign(newer)) == GRANT


def test_a_signing_key_is_created_once_with_private_mode(tmp_path: Path) -> None:
    path = tmp_path / "new" / "grants.key"

    made = Signer.load_or_create(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.load_or_create(path).public_key == made.public_key
    assert len(made.public_key) == 43
    assert list(path.parent.iterdir()) == [path]


def _public_key(path: Path) -> str:
    return Signer.load_or_create(path).public_key


@pytest.mark.process
def test_processes_creating_a_key_concurrently_get_the_same_key(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        for number in range(5):
            path = tmp_path / f"{number}.key"
            assert len(set(pool.map(_public_key, [path] * 4, chunksize=1))) == 1


@pytest.mark.parametrize("content", [b"", b"short", b"\xff\xfe", b"=" * 43, b"A" * 44])
def test_a_damaged_key_file_is_never_replaced(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(ConfigError, match="restore it from a backup"):
        Signer.load_or_create(path)
    assert path.read_bytes() == content


def test_a_key_file_readable_by_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    Signer.load_or_create(path)
    path.chmod(0o640)

    with pytest.raises(ConfigError, match="chmod 600"):
        Signer.load_or_create(path)


def test_a_key_that_cannot_be_created_names_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="file/key cannot be used"):
        Signer.load_or_create(tmp_path / "file" / "key")


@pytest.mark.parametrize("key", ["", "no key", "A" * 42, "A" * 44, SIGNER.public_key + "="])
def test_an_invalid_public_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="43 characters"):
        Verifier(key)
    with pytest.raises(ConfigError, match="a public key is needed"):
        Verifier()


@pytest.mark.process
def test_verifying_a_grant_loads_no_second_openssl() -> None:
    code = (
        "import sys, evoclaw.trust.grants as grants\n"
        "from evoclaw.trust import ed25519\n"
        f"verifier = grants.Verifier({SIGNER.public_key!r})\n"
        "asked = dict(agent='', tool='', args_sha256='', request_id='', permissions=(), now=0)\n"
        "try: verifier.verify('YQ.YQ', **asked)\n"
        "except grants.GrantRefused as refusal: assert refusal.code == 'bad_signature'\n"
        "own = isinstance(ed25519.choose_library(ed25519.loaded_openssl()), ed25519.OpenSSL)\n"
        "assert ('cryptography' in sys.modules) is not own\n"
        "assert 'cryptography.x509' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
