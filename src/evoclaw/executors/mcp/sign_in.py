"""Signs a person in to an MCP server: for `evoclaw mcp login`, never in a run."""

from __future__ import annotations

from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.executors.mcp.connection import McpConnection, McpUnreachable
from evoclaw.executors.mcp.oauth import SignInPrompt, oauth_client
from evoclaw.executors.mcp.offers import McpServer
from evoclaw.executors.mcp.sign_ins import SignInFile

SIGN_IN_TIMEOUT_S = 600.0
"""How long a person may take."""


async def sign_in(server: McpServer, sign_ins: SignInFile, prompt: SignInPrompt) -> bool:
    """Connect to a server with a person who can sign in; whether the server asked for it.

    Raises `ConfigError` if the sign-in, or the connection after it, fails.
    """
    patient = replace(server, start_timeout=SIGN_IN_TIMEOUT_S)
    auth = oauth_client(patient, sign_ins, prompt)
    connection = McpConnection(patient, lambda: None, auth)
    try:
        await connection.open()
        # Some servers ask only when they are used.
        await connection.list()
    except McpUnreachable as problem:
        raise ConfigError(f"the sign-in to {server.name!r} failed: {problem}") from None
    finally:
        await connection.close()
    return auth.context.current_tokens is not None
