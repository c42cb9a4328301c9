"""Signs in to MCP servers over HTTP with the SDK's OAuth client: tokens are stored, and guarded.

In a run nobody is asked: a server that wants a sign-in is a problem that names the command
`evoclaw mcp login`. The SDK keeps neither the expiry of a token nor the authorization server that
issued it; here both are stored, so that a token is refreshed where it came from.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol, cast

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.utils import (
    extract_field_from_www_auth,
    extract_scope_from_www_auth,
    issuers_match,
    union_scopes,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from msgspec.structs import replace
from pydantic import AnyUrl, BaseModel

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.executors.mcp.oauth_endpoints import EndpointGuard, UnsafeEndpoint, is_secure
from evoclaw.executors.mcp.oauth_settings import McpOAuth
from evoclaw.executors.mcp.offers import MAX_NOTE_CHARS, McpServer, one_line
from evoclaw.executors.mcp.sign_ins import SignInFile, StoredSignIn

EXPIRY_MARGIN_S = 10.0
"""A token is refreshed so long before it expires."""


class SignInPrompt(Protocol):
    """Asks a person to sign in with a browser."""

    @property
    def redirect_uri(self) -> str:
        """The address that the browser is sent back to."""
        ...

    async def show(self, url: str) -> None:
        """Show the address to sign in at."""
        ...

    async def result(self) -> tuple[str, str | None, str | None]:
        """Wait for the browser: the code, the state and the issuer."""
        ...


class SignInNeeded(Exception):
    """The server wants a sign-in, and nobody can be asked here; the message says what to do."""


class McpAuth(OAuthClientProvider):
    """The sign-in of one server: stored tokens, refreshed where they were issued."""

    _server: McpServer
    _storage: _Storage
    _guard: EndpointGuard
    _may_authorize = False
    """Whether new tokens can be had without a person, or a person is there."""
    problem = ""
    """Why requests are refused, if they are; for people and the model."""

    def _prepare(self, server: McpServer, storage: _Storage) -> None:
        self._server, self._storage = server, storage
        self._guard = EndpointGuard(server.url)
        storage.context = self.context

    async def _initialize(self) -> None:
        await super()._initialize()
        stored = self._storage.stored
        self.context.token_expiry_time = (
            None if stored.expires_at is None else stored.expires_at - EXPIRY_MARGIN_S
        )
        if stored.tokens and stored.issuer:
            self.context.oauth_metadata = OAuthMetadata.model_validate(stored.issuer)
        if stored.tokens and stored.resource:
            self.context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(
                stored.resource
            )

    async def _auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Add the token; only a request that is challenged waits for the others.

        The SDK's flow holds a lock until the answer comes, so that one slow call would delay all.
        """
        async with self.context.lock:
            if not self._initialized:
                await self._initialize()
        sent, answer = "", None
        if self.context.is_token_valid():
            self._add_auth_header(request)
            sent = self._token()
            answer = yield request
            if not _is_challenge(answer):
                return
            if answer.status_code == 401:
                await self._expire(sent)
        flow = super()._auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                if outgoing is not request:
                    await self._check(str(outgoing.url))
                    reply = yield outgoing
                else:
                    if answer is not None and self._token() == sent:
                        reply, answer = answer, None
                    else:
                        reply = yield request
                    if _is_challenge(reply) and not self._may_authorize:
                        raise self._refuse(reply)
                outgoing = await flow.asend(reply)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    def _token(self) -> str:
        return self.context.current_tokens.access_token if self.context.current_tokens else ""

    async def _expire(self, sent: str) -> None:
        """Make the SDK refresh a token that was rejected, unless another process already did."""
        if self._token() != sent:
            return
        if self._storage.stored.tokens.get("access_token") not in (None, sent):
            await self._initialize()
        else:
            self.context.token_expiry_time = 1.0

    async def _check(self, url: str) -> None:
        if not is_secure(self._server.url):
            raise self._failed("its url is not https, and tokens are never sent unencrypted")
        try:
            await self._guard.check(url)
        except UnsafeEndpoint as unsafe:
            raise self._failed(f"its OAuth metadata names an unsafe address: {unsafe}") from None

    def _refuse(self, challenge: httpx2.Response) -> SignInNeeded:
        login = f"run `evoclaw mcp login {self._storage.name}`"
        if challenge.status_code == 401:
            ended = "the sign-in has ended" if self._storage.stored.tokens else "it needs a sign-in"
            return self._failed(f"{ended}: {login}")
        scope = one_line(extract_scope_from_www_auth(challenge) or "", MAX_NOTE_CHARS)
        self._storage.note_missing(scope)
        return self._failed(f"the sign-in does not include the scope {scope!r}: {login}")

    def _failed(self, why: str) -> SignInNeeded:
        self.problem = one_line(why, MAX_NOTE_CHARS)
        return SignInNeeded(self.problem)

    def _select_authorization_server(self, advertised: list[str]) -> str:
        issuer = self._settings.issuer
        if not issuer:
            return advertised[0]
        for server in advertised:
            if issuers_match(server, issuer):
                return server
        raise OAuthFlowError(f"the server does not name the configured issuer {issuer}")

    def _get_token_endpoint(self) -> str:
        issuer, found = self._settings.issuer, self.context.oauth_metadata
        if issuer and (found is None or not issuers_match(str(found.issuer), issuer)):
            raise OAuthFlowError(f"the server does not lead to the configured issuer {issuer}")
        return super()._get_token_endpoint()

    @property
    def _settings(self) -> McpOAuth:
        return self._server.oauth or McpOAuth()


class PersonAuth(McpAuth):
    """A person signs in; without a prompt only stored tokens are used."""

    def __init__(
        self, server: McpServer, storage: _Storage, prompt: SignInPrompt | None = None
    ) -> None:
        self._prompt, self._may_authorize = prompt, prompt is not None
        settings = server.oauth or McpOAuth()
        metadata = OAuthClientMetadata(
            client_name="EvoClaw",
            redirect_uris=[AnyUrl(prompt.redirect_uri)] if prompt is not None else None,
        )
        super().__init__(
            server.url,
            metadata,
            storage,
            self._show,
            self._result,
            client_metadata_url=settings.client_metadata_url or None,
        )
        self._prepare(server, storage)

    async def _initialize(self) -> None:
        await super()._initialize()
        settings, prompt, client = self._settings, self._prompt, self.context.client_info
        if settings.client_id:
            self.context.client_info = OAuthClientInformationFull(
                client_id=settings.client_id,
                client_secret=settings.client_secret() or None,
                redirect_uris=self.context.client_metadata.redirect_uris,
                token_endpoint_auth_method=_secret_method(settings),
                issuer=settings.issuer or None,
            )
        elif prompt is not None and client is not None:
            # Authorization servers accept only the addresses that a client registered.
            known = [str(uri) for uri in client.redirect_uris or ()]
            if prompt.redirect_uri not in known:
                self.context.client_info = None

    async def _perform_authorization(self) -> httpx2.Request:
        wanted = union_scopes(" ".join(self._settings.scopes), self._storage.stored.missing_scope)
        scope = union_scopes(self.context.client_metadata.scope, wanted)
        self.context.client_metadata.scope = scope or None
        return await super()._perform_authorization()

    async def _show(self, url: str) -> None:
        assert self._prompt is not None
        await self._check(url)
        await self._prompt.show(url)

    async def _result(self) -> AuthorizationCodeResult:
        assert self._prompt is not None
        code, state, issuer = await self._prompt.result()
        return AuthorizationCodeResult(code=code, state=state, iss=issuer)


class SecretAuth(McpAuth, ClientCredentialsOAuthProvider):
    """EvoClaw signs in by itself, with a client secret."""

    _may_authorize = True

    def __init__(self, server: McpServer, settings: McpOAuth, storage: _Storage) -> None:
        ClientCredentialsOAuthProvider.__init__(
            self,
            server.url,
            storage,
            settings.client_id,
            settings.client_secret(),
            scope=" ".join(settings.scopes) or None,
            issuer=settings.issuer,
        )
        self._prepare(server, storage)


class KeyAuth(McpAuth, PrivateKeyJWTOAuthProvider):
    """EvoClaw signs in by itself, with a private key."""

    _may_authorize = True

    def __init__(self, server: McpServer, settings: McpOAuth, storage: _Storage) -> None:
        key = settings.private_key()
        signing = SignedJWTParameters(
            issuer=settings.client_id,
            subject=settings.client_id,
            signing_key=key,
            signing_algorithm=_algorithm(key),
        )
        PrivateKeyJWTOAuthProvider.__init__(
            self,
            server.url,
            storage,
            settings.client_id,
            signing.create_assertion_provider(),
            scope=" ".join(settings.scopes) or None,
            issuer=settings.issuer,
        )
        self._prepare(server, storage)


def oauth_client(
    server: McpServer, sign_ins: SignInFile, prompt: SignInPrompt | None = None
) -> McpAuth:
    """The OAuth client of a server; with a prompt, a person can sign in anew."""
    settings, storage = server.oauth, _Storage(server, sign_ins, fresh=prompt is not None)
    if settings is None or settings.grant == "authorization_code":
        return PersonAuth(server, storage, prompt)
    if settings.private_key_file:
        return KeyAuth(server, settings, storage)
    return SecretAuth(server, settings, storage)


class _Storage:
    """Where the SDK's client finds and leaves the tokens of one server."""

    def __init__(self, server: McpServer, sign_ins: SignInFile, *, fresh: bool) -> None:
        self._server, self._file, self._fresh = server, sign_ins, fresh
        self.context: Any = None

    @property
    def name(self) -> str:
        return self._file.key(self._server.name)

    @property
    def stored(self) -> StoredSignIn:
        found = self._file.get(self._server.name, self._server.url)
        # Who signs in anew is not let in by the old token.
        return replace(found, tokens={}) if self._fresh else found

    async def get_tokens(self) -> OAuthToken | None:
        tokens = self.stored.tokens
        return OAuthToken.model_validate(tokens) if tokens else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        expires = None if tokens.expires_in is None else time.time() + tokens.expires_in
        context, self._fresh = self.context, False
        self._change(
            lambda stored: replace(
                stored,
                tokens=_dumped(tokens),
                expires_at=expires,
                issuer=_dumped(context.oauth_metadata),
                resource=_dumped(context.protected_resource_metadata),
                missing_scope="",
            )
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        client = self.stored.client
        return OAuthClientInformationFull.model_validate(client) if client else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._change(lambda stored: replace(stored, client=_dumped(client_info)))

    def note_missing(self, scope: str) -> None:
        if scope:
            self._change(
                lambda stored: replace(
                    stored, missing_scope=union_scopes(stored.missing_scope, scope) or ""
                )
            )

    def _change(self, update: Callable[[StoredSignIn], StoredSignIn]) -> None:
        self._file.change(self._server.name, self._server.url, update)


def _dumped(model: BaseModel | None) -> dict[str, JSON]:
    return {} if model is None else model.model_dump(mode="json", exclude_none=True)


def _is_challenge(response: httpx2.Response) -> bool:
    if response.status_code == 401:
        return True
    wanted = extract_field_from_www_auth(response, "error") == "insufficient_scope"
    return response.status_code == 403 and wanted


def _secret_method(settings: McpOAuth) -> str:
    has_secret = bool(settings.client_secret_env or settings.client_secret_file)
    return "client_secret_basic" if has_secret else "none"


def _algorithm(key: str) -> str:
    """The signature algorithm that fits a private key."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        loaded = cast("object", load_pem_private_key(key.encode(), None))
    except (ValueError, TypeError):
        raise ConfigError("the private key file of an MCP server is not an open PEM key") from None
    match loaded:
        case rsa.RSAPrivateKey():
            return "RS256"
        case ec.EllipticCurvePrivateKey():
            return {256: "ES256", 384: "ES384", 521: "ES512"}.get(loaded.key_size, "ES256")
        case ed25519.Ed25519PrivateKey():
            return "EdDSA"
        case _:
            raise ConfigError("the private key of an MCP server must be RSA, EC or Ed25519")
