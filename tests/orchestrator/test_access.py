"""Who comes in: our own tokens, and signed ones of somebody else's."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm

from evoclaw.core.errors import ConfigError
from evoclaw.core.labels import Principal
from evoclaw.orchestrator.people.access import (
    AccessControl,
    Caller,
    ConfiguredToken,
    TokenScope,
    has_scope,
)
from evoclaw.orchestrator.people.jwt_access import JwtSettings, JwtVerifier
from evoclaw.store.databases.database import Database
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.governance.tokens import SCHEMA, TokenStore

NOW = 1_800_000_000.0
KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
CURVE = generate_private_key(SECP256R1())
CLAIMS: dict[str, Any] = {
    "iss": "https://id.example",
    "aud": "evoclaw",
    "sub": "ann",
    "tenant": "acme",
    "scope": "runs:read human unheard:of",
    "exp": NOW + 60,
}


class Clock:
    """A clock that a test sets."""

    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[Database]:
    opened = await open_database(tmp_path / "evoclaw.db", (SCHEMA,), durable=False)
    yield opened
    await opened.close()


async def test_a_token_grants_its_scopes_and_its_secret_is_not_stored(
    database: Database, tmp_path: Path
) -> None:
    access = AccessControl(TokenStore(database, Clock()))
    id_, whole = await access.create("ci", "acme", "ann", ["runs:read"])
    assert whole.startswith(f"ec_{id_}_")
    caller = await access.authenticate(whole)
    assert caller == Caller(Principal("acme", "ann"), frozenset({"runs:read"}), id_)
    secret = whole.rpartition("_")[2].encode()
    assert len(secret) == 64
    await database.close()
    assert secret not in _all_in(tmp_path)


def _all_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def test_malformed_and_altered_tokens_are_rejected(database: Database) -> None:
    access = AccessControl(TokenStore(database, Clock()))
    id_, whole = await access.create("ci", "acme", "ann", ["*"])
    other, _ = await access.create("ci", "acme", "ann", ["*"])
    secret = whole.rpartition("_")[2]
    for shown in (
        "", "ec", "ec_", f"ec_{id_}", f"ec_{id_}_", whole[:-1], whole + "0", whole.upper(),
        f"ec_{other}_{secret}", f"ec__{secret}", f"xx_{id_}_{secret}", "ec_\\u2603_x", "a" * 9_000,
        f"ec_{id_}_{secret}_",
    ):  # fmt: skip
        assert await access.authenticate(shown) is None, shown


async def test_expired_and_revoked_tokens_are_rejected(
    database: Database,
) -> None:
    clock = Clock()
    access = AccessControl(TokenStore(database, clock))
    _, brief = await access.create("ci", "acme", "ann", ["*"], 60)
    id_, other = await access.create("ci", "acme", "ann", ["*"])
    clock.now += 59
    assert await access.authenticate(brief) is not None
    clock.now += 1
    assert await access.authenticate(brief) is None
    assert not await access.revoke("another tenant", id_)
    assert await access.authenticate(other) is not None
    assert await access.revoke("acme", id_)
    assert await access.authenticate(other) is None
    listed = {token.id: token for token in await access.list("acme")}
    assert listed[id_].revoked_at == clock.now
    assert listed[id_].used_at == clock.now
    assert all(token.hash == "" for token in listed.values())
    assert await access.list("another tenant") == []


async def test_creating_a_token_requires_known_scopes_and_a_tenant(database: Database) -> None:
    access = AccessControl(TokenStore(database))
    for scopes in ([], ["runs:reed"], ["*", "root"]):
        with pytest.raises(ConfigError, match="scope"):
            await access.create("ci", "acme", "ann", scopes)
    with pytest.raises(ConfigError, match="tenant"):
        await access.create("ci", "", "ann", ["*"])
    with pytest.raises(ConfigError, match="scope"):
        AccessControl(
            TokenStore(database), configured=[ConfiguredToken("x", "secret", scopes=frozenset())]
        )


async def test_a_configured_token_is_accepted_without_a_stored_one(database: Database) -> None:
    fixed = ConfiguredToken("boot", "s" * 40, "acme", "ops", frozenset({"admin"}))
    access = AccessControl(TokenStore(database), configured=[fixed])
    caller = await access.authenticate("s" * 40)
    assert caller is not None
    assert (caller.tenant, caller.token) == ("acme", "boot")


def test_the_admin_scope_does_not_include_human_approval() -> None:
    assert all(has_scope({"*"}, scope) for scope in TokenScope)
    assert has_scope({"admin"}, "audit:read")
    assert not has_scope({"admin"}, "human")
    assert not has_scope({"admin"}, "*")
    assert not has_scope({"runs:read"}, "runs:write")
    admin = Caller(Principal("acme", "bot"), frozenset({"admin"}), "t1")
    assert admin.answerer().refusal_reason("acme")
    person = Caller(Principal("acme", "ann"), frozenset({"human"}), "t2")
    assert not person.answerer().refusal_reason("acme")
    assert person.answerer().refusal_reason("other")


def jwks(path: Path, **keys: dict[str, Any]) -> Path:
    listed = [{"kid": kid, "use": "sig", **key} for kid, key in keys.items()]
    path.write_bytes(msgspec.json.encode({"keys": listed}))
    return path


def public(key: Ed25519PrivateKey) -> dict[str, str]:
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    shown = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    return {"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "x": shown}


def curve() -> dict[str, Any]:
    return ECAlgorithm.to_jwk(CURVE.public_key(), as_dict=True)


def signed(claims: dict[str, Any] | None = None, **header: Any) -> str:
    made = CLAIMS if claims is None else claims
    return jwt.encode(made, KEY, algorithm="EdDSA", headers={"kid": "one", **header})


@pytest.fixture
def tokens(tmp_path: Path) -> JwtVerifier:
    file = jwks(tmp_path / "jwks.json", one=public(KEY), two=curve())
    settings = JwtSettings(issuer="https://id.example", audience="evoclaw", jwks_file=file)
    return JwtVerifier(settings, clock=Clock())


def test_a_jwt_identifies_the_caller_and_its_scopes(tokens: JwtVerifier) -> None:
    caller = tokens.authenticate(signed())
    assert caller is not None
    assert caller.principal == Principal("acme", "ann")
    assert caller.scopes == {"runs:read", "human"}
    late = tokens.authenticate(signed({**CLAIMS, "exp": NOW - 29, "nbf": NOW + 29}))
    assert late is not None
    other = jwt.encode(CLAIMS, CURVE, algorithm="ES256", headers={"kid": "two"})
    assert tokens.authenticate(other) is not None


def test_fault_63_an_invalid_jwt_is_rejected(tokens: JwtVerifier, tmp_path: Path) -> None:
    raw = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    without = {name: CLAIMS[name] for name in CLAIMS}
    wrong = {
        "none": jwt.encode(CLAIMS, "", algorithm="none", headers={"kid": "one"}),
        "another key": jwt.encode(CLAIMS, OTHER, algorithm="EdDSA", headers={"kid": "one"}),
        "another algorithm": jwt.encode(CLAIMS, "s" * 64, algorithm="HS512"),
        "the public key as a secret": jwt.encode(
            CLAIMS, raw, algorithm="HS256", headers={"kid": "one"}
        ),
        "the other key's id": signed(kid="two"),
        "an unknown id": signed(kid="three"),
        "no id": jwt.encode(CLAIMS, KEY, algorithm="EdDSA"),
        "nothing in it": "e30.e30.",
        "something critical": signed(crit=["exp"]),
        "another audience": signed({**CLAIMS, "aud": "other"}),
        "another issuer": signed({**CLAIMS, "iss": "https://evil.example"}),
        "expired": signed({**CLAIMS, "exp": NOW - 31}),
        "not yet": signed({**CLAIMS, "nbf": NOW + 31}),
        "a time that is none": signed({**CLAIMS, "exp": "9999999999"}),
        "a boolean time": signed({**CLAIMS, "exp": True}),
        "no tenant": signed({**CLAIMS, "tenant": ""}),
        "a tenant that is no text": signed({**CLAIMS, "tenant": ["acme"]}),
        "no user": signed({**CLAIMS, "sub": ""}),
        "no scope of ours": signed({**CLAIMS, "scope": "openid email"}),
        "rubbish": "a.b.c",
        "too many parts": signed() + ".x",
        "1 MB": "a" * 500_000 + "." + "b" * 500_000 + ".c",
        "deep": base64.urlsafe_b64encode(b"[" * 3_000).decode() + ".e30.x",
        **{
            f"no {name}": signed({key: without[key] for key in without if key != name})
            for name in ("iss", "aud", "exp", "sub", "scope", "tenant")
        },
    }
    assert tokens.authenticate(signed()) is not None
    for why, token in wrong.items():
        assert tokens.authenticate(token) is None, why


def test_fault_63_a_huge_jwt_costs_no_more_cpu_than_a_small_one(tokens: JwtVerifier) -> None:
    def cost(token: str) -> float:
        began = time.process_time()
        for _ in range(200):
            tokens.authenticate(token)
        return time.process_time() - began

    assert cost("x" * 1_000_000 + ".y.z") <= cost(signed()) + 0.05


def test_a_jwt_shared_secret_must_be_long_and_in_a_private_file(tmp_path: Path) -> None:
    def made(secret: str, mode: int = 0o600) -> JwtVerifier:
        file = tmp_path / f"secret-{len(secret)}-{mode}"
        file.write_text(secret)
        file.chmod(mode)
        return JwtVerifier(
            JwtSettings(
                issuer="i", audience="evoclaw", algorithms=("HS256",), secret_file=file,
                tenant="acme",
            ),
            clock=Clock(),
        )  # fmt: skip

    with pytest.raises(ConfigError, match="32 bytes"):
        made("short")
    with pytest.raises(ConfigError, match="chmod"):
        made("s" * 40, 0o644)
    claims = {**CLAIMS, "iss": "i", "tenant": "not asked"}
    token = jwt.encode(claims, "s" * 40, algorithm="HS256")
    caller = made("s" * 40).authenticate(token)
    assert caller is not None
    assert caller.tenant == "acme"
    assert made("t" * 40).authenticate(token) is None


def test_unusable_jwt_keys_are_reported_at_startup(tmp_path: Path) -> None:
    def settings(file: Path | None, **more: Any) -> JwtSettings:
        return JwtSettings(issuer="i", audience="a", jwks_file=file, **more)

    broken = tmp_path / "broken.json"
    broken.write_text("{")
    secret = jwks(tmp_path / "oct.json", one={"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"})
    twice = tmp_path / "twice.json"
    twice.write_bytes(msgspec.json.encode({"keys": [{"kid": "a", **public(KEY)}] * 2}))
    for file, says in (
        (None, "jwks_file"),
        (tmp_path / "none.json", "jwks_file"),
        (broken, "JWKS"),
        (secret, "no key"),
        (twice, "kid"),
    ):
        with pytest.raises(ConfigError, match=says):
            JwtVerifier(settings(file))
    good = jwks(tmp_path / "good.json", one=public(KEY))
    with pytest.raises(ConfigError, match="scope"):
        JwtVerifier(settings(good, scopes={"read": ("runs:reed",)}))


def test_issuer_roles_are_mapped_to_scopes(tmp_path: Path) -> None:
    file = jwks(tmp_path / "jwks.json", one=public(KEY))
    settings = JwtSettings(
        issuer="https://id.example", audience="evoclaw", jwks_file=file, scopes_claim="roles",
        scopes={"reader": ("runs:read", "sessions:read")},
    )  # fmt: skip
    found = JwtVerifier(settings, clock=Clock())
    caller = found.authenticate(signed({**CLAIMS, "roles": ["reader", "root", 7]}))
    assert caller is not None
    assert caller.scopes == {"runs:read", "sessions:read"}
    assert found.authenticate(signed({**CLAIMS, "roles": ["human"]})) is None
