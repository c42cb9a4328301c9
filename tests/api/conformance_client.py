"""The client that the public MCP conformance suite starts: ours, with a person who always agrees.

`python -m tests.api.conformance_client URL` connects as the scenario in the environment wants it,
lists the tools and calls each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from evoclaw.core.errors import ToolFailure
from evoclaw.core.tools import Call
from evoclaw.executors.mcp.elicitation import PersonAnswer, PersonQuestion
from evoclaw.executors.mcp.executor import McpExecutor
from evoclaw.executors.mcp.oauth_settings import McpOAuth
from evoclaw.executors.mcp.offers import McpServer, NoPins
from evoclaw.executors.mcp.sign_ins import SignInFile
from tests.support.oauth_server import ObedientBrowser

SECRET = "EVOCLAW_CONFORMANCE_SECRET"
METADATA_URL = "https://conformance-test.local/client-metadata.json"
"""The suite knows the document under this address."""
NOT_OURS = {
    "auth/2025-03-26-oauth-metadata-backcompat": "its metadata names another issuer than the "
    "address that it is read from, which RFC 8414 and newer revisions forbid",
    "auth/cross-app-access-complete-flow": "no token exchange with an identity provider of a "
    "company: EvoClaw has no sign-in of its own that could be passed on",
}
"""Client scenarios of what we do not implement, and why not."""


async def settings(scenario: str, url: str, context: dict[str, Any], folder: Path) -> McpOAuth:
    """The settings that an operator would write for a scenario."""
    if scenario == "auth/basic-cimd":
        return McpOAuth(client_metadata_url=METADATA_URL)
    if "client_id" not in context:
        return McpOAuth()
    machine = scenario.startswith("auth/client-credentials")
    about: dict[str, Any] = {
        "client_id": context["client_id"],
        "issuer": await issuer_of(url),
        "grant": "client_credentials" if machine else "authorization_code",
    }
    if key := context.get("private_key_pem"):
        (folder / "key.pem").write_text(key)
        return McpOAuth(**about, private_key_file=folder / "key.pem")
    os.environ[SECRET] = context["client_secret"]
    return McpOAuth(**about, client_secret_env=SECRET)


async def issuer_of(url: str) -> str:
    """The authorization server that the operator of the server would tell people."""
    read = urlsplit(url)
    known = f"{read.scheme}://{read.netloc}/.well-known/oauth-protected-resource{read.path}"
    async with httpx2.AsyncClient(trust_env=False) as client:
        found: list[str] = (await client.get(known)).json()["authorization_servers"]
    return found[0]


async def agree(question: PersonQuestion) -> PersonAnswer | None:
    """A person who is content with what the server suggests."""
    suggested = [option for option in question.options if option.startswith("Use the default")]
    return PersonAnswer((suggested[0],)) if suggested else PersonAnswer(text="2")


async def be_client(url: str, scenario: str, context: dict[str, Any]) -> None:
    """Do what a client does: connect, list the tools, call each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        oauth = await settings(scenario, url, context, folder)
        server = McpServer("suite", url=url, timeout=10, start_timeout=10, oauth=oauth)
        executor = McpExecutor(
            server, NoPins(), sign_ins=SignInFile(folder / "tokens.json"), prompt=ObedientBrowser()
        )
        async with executor:
            if executor.problem:
                raise SystemExit(executor.problem)
            for offered in executor.tools():
                properties: dict[str, object] = offered.parameters.get("properties", {})
                arguments = dict.fromkeys(properties, 2)
                call = Call("1", offered, arguments, "run.1.0.1", offered.timeout)
                try:
                    sys.stdout.write((await executor.execute(call, print, agree)).text + "\n")
                except ToolFailure as failed:
                    sys.stdout.write(f"{failed.message}\n")


if __name__ == "__main__":
    given: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    asyncio.run(be_client(sys.argv[1], os.environ.get("MCP_CONFORMANCE_SCENARIO", ""), given))
