"""Verifies JWTs of an external issuer with the configured keys, and no others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.labels import Principal
from evoclaw.core.messages import JSON, is_array
from evoclaw.orchestrator.people.access import MAX_TOKEN_CHARS, SCOPES, Caller

if TYPE_CHECKING:
    from jwt import PyJWK

MIN_SECRET_BYTES = 32
"""Of a shared secret: the size of the hash, as RFC 7518 requires."""
MAX_KEYS = 100
MAX_KEY_FILE_BYTES = 1 << 20
SYMMETRIC = "HS256"

Algorithm = Literal["EdDSA", "ES256", "RS256", "HS256"]


class JwtSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which JWTs are accepted, and how their claims are mapped."""

    issuer: str
    """Must equal the token's `iss` exactly."""
    audience: str
    """Must be in the token's `aud`."""
    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ("EdDSA", "ES256", "RS256")
    """The accepted signature algorithms."""
    jwks_file: Path | None = None
    """The issuer's public keys, each with a `kid`."""
    secret_file: Path | None = None
    """The shared secret, for HS256 and nothing else."""
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 30.0
    """Seconds by which the issuer's clock may differ."""
    tenant_claim: str = "tenant"
    """The claim that names the tenant."""
    tenant: str = ""
    """The tenant of all these tokens; if empty, the claim must name it."""
    user_claim: str = "sub"
    """The claim that names the user."""
    scopes_claim: str = "scope"
    """A list, or one text separated by spaces."""
    scopes: dict[str, tuple[str, ...]] = {}
    """Maps the issuer's scopes to scopes here; without it they must have the same names."""


class _Jwks(Struct):
    keys: list[dict[str, Any]]


class JwtVerifier:
    """Verifies JWTs; an invalid one has no caller."""

    def __init__(self, settings: JwtSettings, *, clock: Callable[[], float] = time.time) -> None:
        """Read the keys; raise `ConfigError` if they do not fit the algorithms."""
        self._settings, self._clock = settings, clock
        self._keys: Mapping[str, PyJWK] = {}
        self._secret = b""
        asymmetric = [name for name in settings.algorithms if name != SYMMETRIC]
        if SYMMETRIC in settings.algorithms:
            self._secret = _secret(settings.secret_file)
        if asymmetric:
            self._keys = _keys(settings.jwks_file, asymmetric)
        unknown = {scope for scopes in settings.scopes.values() for scope in scopes} - SCOPES
        if unknown:
            raise ConfigError(
                f"[server.jwt] scopes: no such scope: {', '.join(sorted(unknown))}; "
                f"known scopes: {', '.join(sorted(SCOPES))}"
            )

    def authenticate(self, bearer: str) -> Caller | None:
        """The caller of a JWT; None if it is invalid, for whatever reason."""
        import jwt

        if len(bearer) > MAX_TOKEN_CHARS or bearer.count(".") != 2:
            return None
        try:
            header = jwt.get_unverified_header(bearer)
            key, algorithm = self._key(header)
            if key is None:
                return None
            claims = jwt.decode(
                bearer,
                key,
                algorithms=[algorithm],
                issuer=self._settings.issuer,
                audience=self._settings.audience,
                options={
                    "require": ["exp", "iss", "aud"],
                    # Checked below, with our own clock.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError, RecursionError):
            return None
        return self._to_caller(claims) if self._is_current(claims) else None

    def _key(self, header: Mapping[str, Any]) -> tuple[PyJWK | bytes | None, str]:
        """The key and algorithm for a token's header, only from those configured."""
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._settings.algorithms:
            return None, ""
        if "crit" in header:
            return None, ""  # critical extensions are not supported
        if algorithm == SYMMETRIC:
            return self._secret or None, algorithm
        key = self._keys.get(kid) if isinstance(kid, str) else None
        # A public key must never be used as the secret of another algorithm.
        if key is None or key.algorithm_name != algorithm:
            return None, ""
        return key, algorithm

    def _is_current(self, claims: Mapping[str, JSON]) -> bool:
        now, leeway = self._clock(), self._settings.leeway_s
        expires, starts = _number(claims.get("exp")), _number(claims.get("nbf", 0))
        if expires is None or starts is None:
            return False
        return now < expires + leeway and starts - leeway <= now

    def _to_caller(self, claims: Mapping[str, JSON]) -> Caller | None:
        settings = self._settings
        tenant = settings.tenant or claims.get(settings.tenant_claim)
        user = claims.get(settings.user_claim)
        if not isinstance(tenant, str) or not tenant or not isinstance(user, str) or not user:
            return None
        scopes = self._scopes(claims.get(settings.scopes_claim))
        if not scopes:
            return None
        return Caller(Principal(tenant, user), scopes, f"jwt:{user}"[:200])

    def _scopes(self, claim: JSON) -> frozenset[str]:
        names = claim.split() if isinstance(claim, str) else claim if is_array(claim) else []
        named = [name for name in names if isinstance(name, str)]
        if self._settings.scopes:
            return frozenset(
                scope for name in named for scope in self._settings.scopes.get(name, ())
            )
        return frozenset(named) & SCOPES


def _number(value: JSON) -> float | None:
    """A time in Unix seconds; None if it is no number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e15 else None


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as problem:
        raise ConfigError(f"[server.jwt] {what} {path}: {problem.strerror}") from None
    if len(data) > MAX_KEY_FILE_BYTES:
        raise ConfigError(f"[server.jwt] {what} {path} is larger than {MAX_KEY_FILE_BYTES:,} bytes")
    return data


def _secret(path: Path | None) -> bytes:
    if path is None:
        raise ConfigError("[server.jwt] HS256 needs a secret_file; better use EdDSA and jwks_file")
    secret = _read(path, "secret_file").strip()
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"[server.jwt] other users can read {path}; run `chmod 600 {path}`")
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"[server.jwt] the secret in {path} must have at least {MIN_SECRET_BYTES} bytes"
        )
    return secret


def _keys(path: Path | None, algorithms: list[str]) -> dict[str, PyJWK]:
    """The keys of these algorithms, by their ids."""
    if path is None:
        raise ConfigError(f"[server.jwt] {', '.join(algorithms)} need a jwks_file")
    try:
        document = msgspec.json.decode(_read(path, "jwks_file"), type=_Jwks)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise ConfigError(f"[server.jwt] {path} is not a valid JWKS file: {problem}") from None
    found: dict[str, PyJWK] = {}
    for jwk in document.keys[:MAX_KEYS]:
        key, kid = _key(jwk), jwk.get("kid")
        if key is None or key.algorithm_name not in algorithms:
            continue
        if not isinstance(kid, str) or not kid or kid in found:
            raise ConfigError(f"[server.jwt] each key in {path} needs a unique kid")
        found[kid] = key
    if not found:
        raise ConfigError(f"[server.jwt] {path} has no key for {', '.join(algorithms)}")
    return found


def _key(one: dict[str, Any]) -> PyJWK | None:
    """A signing key; None for other keys, and for unsupported types."""
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    if one.get("use", "sig") != "sig":
        return None
    try:
        return PyJWK(one)
    except (PyJWTError, ValueError, TypeError, KeyError):
        return None
