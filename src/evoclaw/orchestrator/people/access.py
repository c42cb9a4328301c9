"""Authentication: API tokens, their scopes, and the caller that a token identifies."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.core.labels import Principal
from evoclaw.governance.approvals import HUMAN_SCOPE, Answerer
from evoclaw.store.governance.tokens import StoredToken, TokenStore

TOKEN_PREFIX = "ec"
MAX_TOKEN_CHARS = 8_192
"""A longer bearer token is rejected without a lookup."""
LAST_USED_INTERVAL_S = 60.0
"""Between two updates of when a token was last used."""


class TokenScope(StrEnum):
    """What a token permits."""

    AGENTS_INVOKE = "agents:invoke"
    RUNS_READ = "runs:read"
    RUNS_WRITE = "runs:write"
    SESSIONS_READ = "sessions:read"
    SESSIONS_WRITE = "sessions:write"
    FLEET_READ = "fleet:read"
    FLEET_WRITE = "fleet:write"
    TOOLS_READ = "tools:read"
    TOOLS_EXECUTE = "tools:execute"
    SKILLS_READ = "skills:read"
    APPROVALS_READ = "approvals:read"
    HUMAN = HUMAN_SCOPE
    """Answer approvals and questions: only for the token of a person."""
    AUDIT_READ = "audit:read"
    BUDGETS_READ = "budgets:read"
    WORKFLOWS_READ = "workflows:read"
    WORKFLOWS_RUN = "workflows:run"
    METRICS_READ = "metrics:read"
    EVOLUTION_READ = "evolution:read"
    EVOLUTION_WRITE = "evolution:write"
    ADMIN = "admin"
    """Everything but `human`, which must be granted by name."""
    EVERYTHING = "*"


SCOPES: frozenset[str] = frozenset(TokenScope)


def has_scope(held: Collection[str], scope: str) -> bool:
    """Whether a set of scopes includes one."""
    if TokenScope.EVERYTHING in held or scope in held:
        return True
    return TokenScope.ADMIN in held and scope not in (TokenScope.HUMAN, TokenScope.EVERYTHING)


class Caller(Struct, frozen=True):
    """The caller of a request, as its token says."""

    principal: Principal
    scopes: frozenset[str]
    token: str
    """The id of the token; for a JWT, `jwt:` and the user."""

    @property
    def tenant(self) -> str:
        """The tenant whose data the caller may see, and no other's."""
        return self.principal.tenant

    def may(self, scope: str) -> bool:
        """Whether the caller has a scope."""
        return has_scope(self.scopes, scope)

    def answerer(self) -> Answerer:
        """The caller as the answerer of approvals: a person only with the scope `human`."""
        name = self.principal.user or self.token
        if not self.may(TokenScope.HUMAN):
            return Answerer("agent", name, self.tenant)
        return Answerer("person", name, self.tenant, frozenset({HUMAN_SCOPE}))


class TokenVerifier(Protocol):
    """Verifies tokens of another kind, such as JWTs."""

    def authenticate(self, bearer: str) -> Caller | None:
        """The caller of a token; None if it is invalid."""
        ...


class ConfiguredToken(Struct, frozen=True):
    """A token from the configuration; it is valid as long as it is configured."""

    id: str
    secret: str
    tenant: str = "local"
    user: str = ""
    scopes: frozenset[str] = frozenset()


class AccessControl:
    """Authenticates callers by their tokens; creates, lists and revokes tokens."""

    def __init__(
        self,
        store: TokenStore,
        *,
        configured: Iterable[ConfiguredToken] = (),
        external: TokenVerifier | None = None,
    ) -> None:
        """Choose which tokens are accepted.

        Args:
            store: Where tokens are stored, as hashes.
            configured: Tokens from the configuration.
            external: Verifies tokens that are not stored here, such as JWTs.
        """
        self._store, self._external = store, external
        self._configured: dict[str, Caller] = {}
        for token in configured:
            _check_scopes(token.scopes)
            caller = Caller(Principal(token.tenant, token.user), token.scopes, token.id)
            self._configured[_hash(token.secret)] = caller
        # An unknown token is compared with this hash, so that it takes as long as a known one.
        self._decoy_hash = _hash(secrets.token_hex(32))

    async def authenticate(self, bearer: str) -> Caller | None:
        """The caller of a bearer token; None if it is invalid, for whatever reason."""
        if not bearer or len(bearer) > MAX_TOKEN_CHARS or not bearer.isascii():
            return None
        # Looked up by its hash: the time that takes does not reveal a nearly correct secret.
        if (known := self._configured.get(_hash(bearer))) is not None:
            return known
        prefix, _, rest = bearer.partition("_")
        if prefix != TOKEN_PREFIX:
            return None if self._external is None else self._external.authenticate(bearer)
        id_, _, secret = rest.partition("_")
        return await self._authenticate_stored(id_, secret)

    async def _authenticate_stored(self, id_: str, secret: str) -> Caller | None:
        token = await self._store.get_recent(id_)
        expected = self._decoy_hash if token is None else token.hash
        same = hmac.compare_digest(expected, _hash(secret))
        now = self._store.now()
        if token is None or not same or not token.is_valid(now):
            return None
        if token.used_at is None or now - token.used_at >= LAST_USED_INTERVAL_S:
            await self._store.mark_used(id_)
        return Caller(Principal(token.tenant, token.user), token.scopes, token.id)

    async def create(
        self,
        name: str,
        tenant: str,
        user: str,
        scopes: Iterable[str],
        expires_in: float | None = None,
    ) -> tuple[str, str]:
        """Create a token; return its id, and its full text, which is not stored.

        Args:
            name: What it is for, for people.
            tenant: Whose data it gives access to.
            user: On whose behalf its bearer acts.
            scopes: What it permits.
            expires_in: Seconds until it expires; None is never.
        """
        granted = frozenset(scopes)
        _check_scopes(granted)
        if not tenant:
            raise ConfigError("a token needs a tenant; none was given")
        id_, secret, now = secrets.token_hex(6), secrets.token_hex(32), self._store.now()
        expires_at = None if expires_in is None else now + expires_in
        await self._store.put(
            StoredToken(id_, tenant, name, user, granted, _hash(secret), now, expires_at)
        )
        return id_, f"{TOKEN_PREFIX}_{id_}_{secret}"

    async def list(self, tenant: str) -> Sequence[StoredToken]:
        """The tokens of a tenant, the newest first, without their hashes."""
        return [replace(token, hash="") for token in await self._store.list(tenant)]

    async def revoke(self, tenant: str, id_: str) -> bool:
        """Revoke a token, at once in this process; False if the tenant has none with that id.

        Other processes stop accepting it within `TOKEN_CACHE_S` seconds.
        """
        return await self._store.revoke(id_, tenant)


def _check_scopes(scopes: frozenset[str]) -> None:
    if not scopes:
        raise ConfigError(f"a token needs at least one scope; known scopes: {_known_scopes()}")
    if unknown := scopes - SCOPES:
        raise ConfigError(
            f"no such scope: {', '.join(sorted(unknown))}; known scopes: {_known_scopes()}"
        )


def _known_scopes() -> str:
    return ", ".join(sorted(SCOPES))


def _hash(secret: str) -> str:
    """A fast hash is enough for a secret of 256 random bits, which cannot be guessed."""
    return sha256(secret.encode()).hexdigest()
