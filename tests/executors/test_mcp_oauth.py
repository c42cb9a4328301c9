"""Signing in to MCP servers over HTTP: real servers on loopback ports, tokens in a private file."""

from __future__ import annotations

import asyncio
import logging
import stat
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError, ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.tools import Call
from evoclaw.executors.mcp.executor import McpExecutor
from evoclaw.executors.mcp.oauth_endpoints import EndpointGuard, UnsafeEndpoint
from evoclaw.executors.mcp.oauth_settings import McpOAuth
from evoclaw.executors.mcp.offers import McpServer, NoPins
from evoclaw.executors.mcp.sign_in import sign_in
from evoclaw.executors.mcp.sign_ins import SignInFile
from tests.support.oauth_server import (
    AuthorizationServer,
    ObedientBrowser,
    authorization_server,
    protected_server,
)

pytestmark = pytest.mark.process


@pytest.fixture
def sign_ins(tmp_path: Path) -> SignInFile:
    return SignInFile(tmp_path / "sign-ins.json")


@asynccontextmanager
async def servers() -> AsyncGenerator[tuple[AuthorizationServer, McpServer]]:
    async with (
        asyncio.timeout(60),
        authorization_server() as issuer,
        protected_server(issuer) as url,
    ):
        yield issuer, McpServer("tickets", url=url)


@asynccontextmanager
async def run(server: McpServer, sign_ins: SignInFile) -> AsyncGenerator[McpExecutor]:
    """The server as a run uses it: nobody can be asked to sign in."""
    async with McpExecutor(server, NoPins(), sign_ins=sign_ins) as executor:
        yield executor


async def echo(executor: McpExecutor) -> str:
    (tool,) = executor.tools()
    call = Call("c1", tool, {"text": "hello"}, "run.1.0.1", 20.0)
    return (await executor.execute(call, lambda text: None)).text


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_a_person_signs_in_once_and_runs_use_the_tokens(sign_ins: SignInFile) -> None:
    browser = ObedientBrowser()
    async with servers() as (issuer, server):
        assert await sign_in(server, sign_ins, browser)
        async with run(server, sign_ins) as executor:
            answer = await echo(executor)

    (asked,), (exchanged,) = issuer.sent("/authorize"), issuer.sent("/token")
    assert answer == "you said hello"
    assert asked["code_challenge_method"] == "S256" and exchanged["code_verifier"]
    assert asked["resource"] == exchanged["resource"] == server.url
    assert asked["scope"].split() == ["read", "offline_access"]


async def test_a_run_without_a_sign_in_names_the_command_and_registers_nothing(
    sign_ins: SignInFile,
) -> None:
    async with servers() as (issuer, server), run(server, sign_ins) as executor:
        problem = executor.problem

    assert problem == "it needs a sign-in: run `evoclaw mcp login tickets`"
    assert issuer.requests == []


async def test_an_expired_token_is_refreshed_where_it_was_issued(sign_ins: SignInFile) -> None:
    async with servers() as (issuer, server):
        issuer.lifetime_s = 1  # already within the margin
        await sign_in(server, sign_ins, ObedientBrowser())
        issuer.lifetime_s = 3600
        async with run(server, sign_ins) as executor:
            answer = await echo(executor)
        stored = sign_ins.get("tickets", server.url)

    assert answer == "you said hello"
    assert [given["grant_type"] for given in issuer.sent("/token")] == [
        "authorization_code",
        "refresh_token",
    ]
    assert issuer.sent("/token")[1]["resource"] == server.url
    # A refresh token that was replaced is stored, else the next refresh would fail.
    assert stored.tokens["refresh_token"] in issuer.refresh


async def test_a_token_that_the_server_rejects_is_refreshed_within_the_call(
    sign_ins: SignInFile,
) -> None:
    async with servers() as (issuer, server):
        await sign_in(server, sign_ins, ObedientBrowser())
        async with run(server, sign_ins) as executor:
            issuer.end_access()
            answer = await echo(executor)

    assert answer == "you said hello"


async def test_a_call_after_the_sign_in_was_revoked_did_not_run_and_names_the_command(
    sign_ins: SignInFile,
) -> None:
    async with servers() as (issuer, server):
        await sign_in(server, sign_ins, ObedientBrowser())
        async with run(server, sign_ins) as executor:
            issuer.revoke()
            with pytest.raises(ToolFailure) as failed:
                await echo(executor)

    assert failed.value.kind is ErrorKind.PERMISSION_DENIED
    assert "did not run this call" in failed.value.message
    assert "`evoclaw mcp login tickets`" in failed.value.message


async def test_a_missing_scope_is_requested_by_the_next_sign_in(sign_ins: SignInFile) -> None:
    async with servers() as (issuer, server):
        await sign_in(server, sign_ins, ObedientBrowser())
        for token in list(issuer.access):
            issuer.access[token].scopes = ["other"]
        async with run(server, sign_ins) as executor:
            problem = executor.problem
        missing = sign_ins.get("tickets", server.url).missing_scope
        await sign_in(server, sign_ins, ObedientBrowser())
        async with run(server, sign_ins) as executor:
            answer = await echo(executor)

    assert "does not include the scope" in problem and "evoclaw mcp login tickets" in problem
    assert set(missing.split()) <= set(issuer.sent("/authorize")[1]["scope"].split())
    assert answer == "you said hello"


async def test_tokens_are_in_a_private_file_and_in_no_log(
    sign_ins: SignInFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with servers() as (issuer, server):
        await sign_in(server, sign_ins, ObedientBrowser())
        issuer.end_access()
        async with run(server, sign_ins) as executor:
            await echo(executor)
            issuer.revoke()
            with pytest.raises(ToolFailure):
                await echo(executor)
            shown = f"{executor.problem} {executor.server} {sign_ins.get('tickets', server.url)}"

    modes = await asyncio.to_thread(modes_in, tmp_path)
    assert modes == {"sign-ins.json": 0o600, "sign-ins.lock": 0o600}
    told = [record.getMessage() for record in caplog.records] + [shown]
    assert not [(line, secret) for secret in issuer.secrets() for line in told if secret in line]


async def test_tokens_are_not_sent_to_another_address_of_the_same_name(
    sign_ins: SignInFile,
) -> None:
    async with servers() as (issuer, server), protected_server(issuer) as elsewhere:
        await sign_in(server, sign_ins, ObedientBrowser())
        async with run(replace(server, url=elsewhere), sign_ins) as executor:
            problem = executor.problem

    assert "it needs a sign-in" in problem


async def test_metadata_of_another_resource_is_refused(sign_ins: SignInFile) -> None:
    async with (
        asyncio.timeout(60),
        authorization_server() as issuer,
        protected_server(issuer, resource_path="/other") as url,
    ):
        with pytest.raises(ConfigError, match="does not match"):
            await sign_in(McpServer("evil", url=url), sign_ins, ObedientBrowser())

    assert issuer.sent("/authorize") == [] and issuer.clients == {}


async def test_an_authorization_server_that_names_another_issuer_is_refused(
    sign_ins: SignInFile,
) -> None:
    async with servers() as (issuer, server):
        issuer.issuer = "https://honest.example.org"
        with pytest.raises(ConfigError, match="issuer mismatch"):
            await sign_in(server, sign_ins, ObedientBrowser())

    assert issuer.clients == {}


async def test_an_answer_of_another_issuer_or_state_is_refused(sign_ins: SignInFile) -> None:
    mixed_up, forged = ObedientBrowser(), ObedientBrowser()
    mixed_up.change = {"iss": "https://other.example.org"}
    forged.change = {"state": "forged"}
    async with servers() as (issuer, server):
        with pytest.raises(ConfigError, match="iss mismatch"):
            await sign_in(server, sign_ins, mixed_up)
        with pytest.raises(ConfigError, match="State parameter mismatch"):
            await sign_in(server, sign_ins, forged)

    assert issuer.sent("/token") == []


async def test_a_secret_is_sent_to_no_issuer_but_the_configured_one(
    sign_ins: SignInFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TICKETS_SECRET", "s" * 30)
    oauth = McpOAuth(
        grant="client_credentials",
        client_id="me",
        client_secret_env="TICKETS_SECRET",
        issuer="https://honest.example.org",
    )
    async with (
        servers() as (issuer, server),
        run(replace(server, oauth=oauth), sign_ins) as executor,
    ):
        problem = executor.problem

    assert "does not name the configured issuer" in problem
    assert issuer.sent("/token") == []


async def test_evoclaw_signs_in_by_itself_with_a_secret_or_a_key(
    sign_ins: SignInFile, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("s" * 30 + "\n")
    key = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    (tmp_path / "key.pem").write_bytes(key)
    async with servers() as (issuer, server):
        machine = McpOAuth(
            grant="client_credentials",
            client_id="me",
            issuer=f"{issuer.url}/",
            scopes=("read",),
        )
        by_secret = replace(machine, client_secret_file=tmp_path / "secret")
        async with run(replace(server, oauth=by_secret), sign_ins) as executor:
            first = await echo(executor)
        sign_ins.forget("tickets")
        by_key = replace(machine, private_key_file=tmp_path / "key.pem")
        async with run(replace(server, oauth=by_key), sign_ins) as executor:
            second = await echo(executor)

    assert first == second == "you said hello"
    secret, assertion = issuer.sent("/client")[0]["secret"], issuer.sent("/token")[1]
    assert b64decode(secret.removeprefix("Basic ")).decode() == f"me:{'s' * 30}"
    assert "client_secret" not in assertion and assertion["client_assertion"]
    assert issuer.clients == {}


async def test_metadata_cannot_make_us_contact_other_networks(sign_ins: SignInFile) -> None:
    async with servers() as (issuer, server):
        issuer.token_url = "http://169.254.169.254/latest/token"
        with pytest.raises(ConfigError, match="unsafe address.*not https"):
            await sign_in(server, sign_ins, ObedientBrowser())
        issuer.token_url = "https://169.254.169.254/latest/token"
        with pytest.raises(ConfigError, match="unsafe address"):
            await sign_in(server, sign_ins, ObedientBrowser())


@pytest.mark.parametrize(
    ("server", "endpoint", "refused"),
    [
        ("https://mcp.example.org/mcp", "https://login.example.org/token", ""),
        ("https://mcp.example.org/mcp", "https://mcp.example.org/token", ""),
        ("https://mcp.example.org/mcp", "http://login.example.org/token", "not https"),
        ("https://mcp.example.org/mcp", "https://localhost/token", "this machine"),
        ("https://mcp.example.org/mcp", "https://inside.example.org/", "a private network"),
        ("https://mcp.example.org/mcp", "https://169.254.169.254/", "metadata"),
        ("https://inside.example.org/mcp", "https://inside2.example.org/", ""),
        ("https://inside.example.org/mcp", "https://169.254.169.254/", "metadata"),
        ("https://inside.example.org/mcp", "http://localhost/", "not https"),
        ("http://127.0.0.1:8000/mcp", "http://127.0.0.1:9000/token", ""),
        ("http://127.0.0.1:8000/mcp", "http://localhost:9000/token", ""),
        ("http://127.0.0.1:8000/mcp", "http://login.example.org/token", "not https"),
        ("http://127.0.0.1:8000/mcp", "file:///etc/passwd", "http"),
    ],
)
async def test_only_public_or_neighbouring_https_endpoints_are_contacted(
    server: str, endpoint: str, refused: str
) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        known = {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1"}
        inside = host.startswith("inside")
        return [known.get(host, "10.1.2.3" if inside else "93.184.216.34")]

    problem = ""
    try:
        await EndpointGuard(server, resolve=resolve).check(endpoint)
    except UnsafeEndpoint as unsafe:
        problem = str(unsafe)

    assert bool(problem) == bool(refused) and refused in problem


async def test_a_server_over_plain_http_elsewhere_gets_no_sign_in(sign_ins: SignInFile) -> None:
    from evoclaw.executors.mcp.oauth import SignInNeeded, oauth_client

    server = McpServer("plain", url="http://mcp.example.org/mcp")
    auth = oauth_client(server, sign_ins, ObedientBrowser())

    with pytest.raises(SignInNeeded, match="never sent unencrypted"):
        await auth._check("https://login.example.org/token")  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (McpOAuth(client_secret_env="X", issuer="https://a"), "`client_id` is missing"),
        (McpOAuth(client_id="a", client_secret_env="X"), "`issuer` is missing"),
        (McpOAuth(client_id="a", grant="client_credentials"), "need a client secret"),
        (McpOAuth(client_metadata_url="http://a/b"), "must start with https"),
    ],
)
def test_oauth_settings_that_do_not_fit_together_are_refused(
    settings: McpOAuth, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        McpServer("x", url="https://example.org/mcp", oauth=settings).check()


def test_a_broken_file_of_sign_ins_is_reported_without_its_content(
    sign_ins: SignInFile, tmp_path: Path
) -> None:
    (tmp_path / "sign-ins.json").write_text('{"tickets": "secret-token')

    with pytest.raises(ConfigError) as failed:
        sign_ins.get("tickets", "https://example.org")

    assert "evoclaw mcp login" in str(failed.value) and "secret" not in str(failed.value)
