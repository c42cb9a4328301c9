"""Who comes in: tokens with scopes, and on whose behalf whoever shows one may ask."""

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
from evoclaw.governance.approvals import HUMAN, Answerer
from evoclaw.store.governing.tokens import StoredToken, TokenStore

PREFIX = "ec"
LONGEST = 8_192
"""Characters of a bearer token; a longer one is nobody's, and is not looked at."""
USED_EVERY = 60.0
"""Seconds between two notes that a token is in use."""


class Scope(StrEnum):
    """What the bearer of a token may ask for."""

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
    HUMAN = HUMAN
    """May answer approvals and questions: only for the token of a person."""
    AUDIT_READ = "audit:read"
    BUDGETS_READ = "budgets:read"
    WORKFLOWS_READ = "workflows:read"
    WORKFLOWS_RUN = "workflows:run"
    METRICS_READ = "metrics:read"
    ADMIN = "admin"
    """Everything but `human`, which must be given by name."""
    EVERYTHING = "*"


SCOPES: frozenset[str] = frozenset(Scope)


def holds(held: Collection[str], scope: str) -> bool:
    """Whether these scopes include one."""
    if Scope.EVERYTHING in held or scope in held:
        return True
    return Scope.ADMIN in held and scope not in (Scope.HUMAN, Scope.EVERYTHING)


class Caller(Struct, frozen=True):
    """Whoever asks, as far as the token says."""

    principal: Principal
    scopes: frozenset[str]
    token: str
    """Its id; for a signed token, who it says it is."""

    @property
    def tenant(self) -> str:
        """Whose data it may see: never anybody else's."""
        return self.principal.tenant

    def may(self, scope: str) -> bool:
        """Whether it may ask for that."""
        return holds(self.scopes, scope)

    def answerer(self) -> Answerer:
        """The same as one who answers approvals: a person, or nobody who may."""
        name = self.principal.user or self.token
        if not self.may(Scope.HUMAN):
            return Answerer("agent", name, self.tenant)
        return Answerer("person", name, self.tenant, frozenset({HUMAN}))


class Bearers(Protocol):
    """Another kind of token than ours."""

    def caller(self, bearer: str) -> Caller | None:
        """Who shows it, if it is good."""
        ...


class FixedToken(Struct, frozen=True):
    """A token that was configured, not made here: it lasts as long as it is configured."""

    id: str
    secret: str
    tenant: str = "local"
    user: str = ""
    scopes: frozenset[str] = frozenset()


class Access:
    """Says who shows a token, makes new ones, takes them back."""

    def __init__(
        self,
        store: TokenStore,
        *,
        fixed: Iterable[FixedToken] = (),
        others: Bearers | None = None,
    ) -> None:
        """Choose what is accepted.

        Args:
            store: Where tokens are kept.
            fixed: Those of the configuration.
            others: Who knows tokens that are not ours, as signed ones.
        """
        self._store, self._others = store, others
        self._fixed: dict[str, Caller] = {}
        for token in fixed:
            _check_scopes(token.scopes)
            caller = Caller(Principal(token.tenant, token.user), token.scopes, token.id)
            self._fixed[_hash(token.secret)] = caller
        # What an unknown token is compared with, so that it costs the same as a known one.
        self._nobody = _hash(secrets.token_hex(32))

    async def caller(self, bearer: str) -> Caller | None:
        """Who shows this; None if it is not good, whatever the reason."""
        if not bearer or len(bearer) > LONGEST or not bearer.isascii():
            return None
        # Found by its hash: how long that takes says nothing about a secret that is nearly right.
        if (known := self._fixed.get(_hash(bearer))) is not None:
            return known
        prefix, _, rest = bearer.partition("_")
        if prefix != PREFIX:
            return None if self._others is None else self._others.caller(bearer)
        id_, _, secret = rest.partition("_")
        return await self._kept(id_, secret)

    async def _kept(self, id_: str, secret: str) -> Caller | None:
        token = await self._store.get(id_)
        wanted = self._nobody if token is None else token.hash
        same = hmac.compare_digest(wanted, _hash(secret))
        now = self._store.now()
        if token is None or not same or not token.is_good(now):
            return None
        if token.used_at is None or now - token.used_at >= USED_EVERY:
            await self._store.used(id_)
        return Caller(Principal(token.tenant, token.user), token.scopes, token.id)

    async def new(
        self,
        name: str,
        tenant: str,
        user: str,
        scopes: Iterable[str],
        expires_in: float | None = None,
    ) -> tuple[str, str]:
        """Make a token: its id, and the whole of it, which is not kept and never shown again.

        Args:
            name: For people, what it is for.
            tenant: Whose data it opens.
            user: On whose behalf it asks.
            scopes: What it may ask for.
            expires_in: Seconds until it is worth nothing; None is never.
        """
        held = frozenset(scopes)
        _check_scopes(held)
        if not tenant:
            raise ConfigError("a token is for one tenant: say which")
        id_, secret, now = secrets.token_hex(6), secrets.token_hex(32), self._store.now()
        until = None if expires_in is None else now + expires_in
        await self._store.put(StoredToken(id_, tenant, name, user, held, _hash(secret), now, until))
        return id_, f"{PREFIX}_{id_}_{secret}"

    async def list(self, tenant: str) -> Sequence[StoredToken]:
        """The tokens of a tenant, the newest first; without what they are checked by."""
        return [replace(token, hash="") for token in await self._store.list(tenant)]

    async def revoke(self, tenant: str, id_: str) -> bool:
        """Take a token back, at once; False if the tenant has none of that id."""
        return await self._store.revoke(id_, tenant)


def _check_scopes(scopes: frozenset[str]) -> None:
    if not scopes:
        raise ConfigError(f"a token without scopes opens nothing: give some of {_known()}")
    if wrong := scopes - SCOPES:
        raise ConfigError(f"no such scope: {', '.join(sorted(wrong))}; known: {_known()}")


def _known() -> str:
    return ", ".join(sorted(SCOPES))


def _hash(secret: str) -> str:
    """Enough for a secret of 256 random bits: there is nothing to guess."""
    return sha256(secret.encode()).hexdigest()
