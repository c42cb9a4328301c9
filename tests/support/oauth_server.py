"""A small OAuth authorization server, and an MCP server of the official SDK that trusts it."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from aiohttp import ClientSession, web
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from yarl import URL

from evoclaw.api.server import listen, running_server
from evoclaw.api.settings import ServerSettings


@dataclass
class AuthorizationServer:
    """Signs everybody in at once; remembers what it was sent, and what it issued."""

    url: str = ""
    lifetime_s: int = 3600
    scopes: tuple[str, ...] = ("read",)
    issuer: str = ""
    """What the metadata says; empty: the truth."""
    token_url: str = ""
    """Where tokens are said to be; empty: here."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Further metadata."""
    clients: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    codes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    refresh: dict[str, str] = field(default_factory=dict[str, str])
    """The valid refresh tokens, and their scopes: each is used once."""
    access: dict[str, AccessToken] = field(default_factory=dict[str, AccessToken])
    requests: list[tuple[str, dict[str, str]]] = field(
        default_factory=list[tuple[str, dict[str, str]]]
    )
    """The path and the parameters of each request."""

    def sent(self, path: str) -> list[dict[str, str]]:
        """The parameters of the requests to one path."""
        return [given for asked, given in self.requests if asked == path]

    def secrets(self) -> list[str]:
        """Every token and code that was ever issued."""
        return [*self.codes, *self.refresh, *self.access, *self._used]

    _used: list[str] = field(default_factory=list[str])

    def end_access(self) -> None:
        """Accept none of the access tokens any more."""
        self._used += self.access
        self.access.clear()

    def revoke(self) -> None:
        """Accept no token any more, and refresh none."""
        self.end_access()
        self._used += self.refresh
        self.refresh.clear()

    async def verify_token(self, token: str) -> AccessToken | None:
        """The SDK's server asks whether a token is good."""
        return self.access.get(token)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/.well-known/oauth-authorization-server", self._metadata)
        app.router.add_post("/register", self._register)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._token)
        return app

    async def _metadata(self, request: web.Request) -> web.Response:
        self.requests.append((request.path, {}))
        about = {
            "issuer": self.issuer or f"{self.url}/",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": self.token_url or f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "scopes_supported": [*self.scopes, "offline_access"],
        }
        return web.json_response(about | self.metadata)

    async def _register(self, request: web.Request) -> web.Response:
        given: dict[str, Any] = await request.json()
        self.requests.append((request.path, {"redirect_uri": given["redirect_uris"][0]}))
        client = {**given, "client_id": f"client-{len(self.clients) + 1}"}
        client |= {"token_endpoint_auth_method": "none"}
        self.clients[client["client_id"]] = client
        return web.json_response(client, status=201)

    async def _authorize(self, request: web.Request) -> web.Response:
        given = dict(request.query)
        self.requests.append((request.path, given))
        code = f"code-{len(self.codes) + 1}-{'x' * 20}"
        self.codes[code] = given
        back = {"code": code, "state": given["state"], "iss": f"{self.url}/"}
        raise web.HTTPFound(f"{given['redirect_uri']}?{urlencode(back)}")

    async def _token(self, request: web.Request) -> web.Response:
        given = {key: str(value) for key, value in (await request.post()).items()}
        self.requests.append((request.path, given))
        match given["grant_type"]:
            case "authorization_code":
                asked = self.codes.get(given["code"], {})
                digest = hashlib.sha256(given["code_verifier"].encode()).digest()
                challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
                if asked.get("code_challenge") != challenge:
                    return web.json_response({"error": "invalid_grant"}, status=400)
                scope = asked.get("scope", "")
            case "refresh_token":
                if given["refresh_token"] not in self.refresh:
                    return web.json_response({"error": "invalid_grant"}, status=400)
                self._used.append(given["refresh_token"])
                scope = self.refresh.pop(given["refresh_token"])
            case "client_credentials":
                header = request.headers.get("authorization", "")
                self.requests.append(("/client", {"secret": header}))
                if not header.startswith("Basic ") and "client_assertion" not in given:
                    return web.json_response({"error": "invalid_client"}, status=401)
                scope = given.get("scope", "")
            case _:
                return web.json_response({"error": "unsupported_grant_type"}, status=400)
        return web.json_response(self._issue(scope, given.get("resource")))

    def _issue(self, scope: str, resource: str | None) -> dict[str, Any]:
        number = len(self.secrets())
        access, refresh = f"access-{number}-{'y' * 20}", f"refresh-{number}-{'z' * 20}"
        self.refresh[refresh] = scope
        self.access[access] = AccessToken(
            token=access,
            client_id="any",
            scopes=scope.split(),
            expires_at=int(time.time()) + max(self.lifetime_s, 60),
            resource=resource,
        )
        return {
            "access_token": access,
            "token_type": "Bearer",
            "expires_in": self.lifetime_s,
            "refresh_token": refresh,
            "scope": scope,
        }


@asynccontextmanager
async def authorization_server() -> AsyncGenerator[AuthorizationServer]:
    """Serve on a loopback port of its own."""
    made = AuthorizationServer()
    runner = web.AppRunner(made.app())
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()


@asynccontextmanager
async def protected_server(
    trusted: AuthorizationServer, *, resource_path: str = "/mcp"
) -> AsyncGenerator[str]:
    """The SDK's MCP server with one tool; yields its address.

    Args:
        trusted: Issues the tokens that it accepts.
        resource_path: The path of the resource that its metadata describes.
    """
    listening = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    server = MCPServer(
        "protected",
        token_verifier=trusted,
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(trusted.url),
            resource_server_url=AnyHttpUrl(url.removesuffix("/mcp") + resource_path),
            required_scopes=list(trusted.scopes),
            validate_token_resource=True,
        ),
    )

    @server.tool()
    def echo(text: str) -> str:
        """Say it again."""
        return f"you said {text}"

    app = server.streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
    async with running_server(app, listening, ServerSettings(stop_within_s=1)):
        yield url


class ObedientBrowser:
    """Signs in wherever it is sent, without a person: a double of `evoclaw mcp login`."""

    def __init__(self, port: int = 33_418) -> None:
        self.redirect_uri = f"http://127.0.0.1:{port}/callback"
        self.shown: list[str] = []
        self.came_back: dict[str, str] = {}
        self.change: dict[str, str] = {}
        """Parameters that an attacker changes on the way back."""

    async def show(self, url: str) -> None:
        """Open the address; the authorization server sends us back at once."""
        self.shown.append(url)
        async with ClientSession() as client, client.get(url, allow_redirects=False) as response:
            self.came_back = dict(URL(response.headers["location"]).query) | self.change

    async def result(self) -> tuple[str, str | None, str | None]:
        """What the authorization server sent us back with."""
        found = self.came_back
        return found["code"], found.get("state"), found.get("iss")
