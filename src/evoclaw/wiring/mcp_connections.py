"""Connects to the MCP servers that `evoclaw.toml` names, with the approvals of their tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from evoclaw.config.evoclaw_toml import McpConfig
    from evoclaw.executors.mcp.oauth import SignInPrompt
    from evoclaw.executors.mcp.offers import McpServer
    from evoclaw.executors.mcp.pins import PinFile
    from evoclaw.executors.mcp.servers import AttendedMcpServers, McpServers
    from evoclaw.executors.mcp.sign_ins import SignInFile
    from evoclaw.tools.question import UserPrompter

PINS_FILE = "approved-mcp.json"
SIGN_INS_FILE = "mcp-sign-ins.json"


def mcp_pins(env: Mapping[str, str]) -> PinFile:
    """The approved tools of MCP servers, by hash."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.executors.mcp.pins import PinFile

    return PinFile(default_data_folder(env) / PINS_FILE)


def mcp_servers(env: Mapping[str, str]) -> McpServers:
    """The configured MCP servers; connected while they are entered as a context."""
    from evoclaw.executors.mcp.servers import McpServers
    from evoclaw.wiring.settings import orchestrator_settings

    definitions = mcp_definitions(orchestrator_settings(env).mcp)
    return McpServers(definitions, mcp_pins(env), mcp_sign_ins(env))


def mcp_sign_ins(env: Mapping[str, str], edge: str = "") -> SignInFile:
    """The tokens of MCP servers: those of an edge of this machine, if it is named."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.executors.mcp.sign_ins import SignInFile

    return SignInFile(default_data_folder(env) / SIGN_INS_FILE, owner=edge)


def mcp_definition(
    env: Mapping[str, str], name: str, agent_toml: Path
) -> tuple[McpServer, SignInFile]:
    """A server by its name, or `EDGE/SERVER` of an `agent.toml`; and where its tokens are stored.

    Raises `ConfigError` if it is unknown, or not reached by a URL.
    """
    from evoclaw.config.agent_toml import read_agent_toml
    from evoclaw.wiring.settings import orchestrator_settings

    edge, _, server = name.rpartition("/")
    if edge:
        config = read_agent_toml(agent_toml, env)
        if config.agent_id != edge:
            raise ConfigError(f"{agent_toml} is of the edge {config.agent_id!r}, not {edge!r}")
        found = mcp_definitions(config.mcp)
    else:
        found = mcp_definitions(orchestrator_settings(env).mcp)
    by_name = {definition.name: definition for definition in found}
    if server not in by_name:
        known = ", ".join(sorted(by_name)) or "none"
        raise ConfigError(f"unknown MCP server {name!r}; the settings name: {known}")
    definition = by_name[server]
    definition.check()
    if not definition.url:
        raise ConfigError(f"the MCP server {name!r} is a program: only a `url` needs a sign-in")
    return definition, mcp_sign_ins(env, edge)


async def mcp_sign_in(server: McpServer, sign_ins: SignInFile, prompt: SignInPrompt) -> bool:
    """Have a person sign in to a server; whether the server asked for it.

    Raises `ConfigError` if the sign-in fails.
    """
    try:
        from evoclaw.executors.mcp.sign_in import sign_in
    except ImportError as missing:
        raise ConfigError(
            f"MCP support is not installed ({missing}); run: pip install 'evoclaw[mcp]'"
        ) from None
    return await sign_in(server, sign_ins, prompt)


def attended(servers: McpServers, prompter: UserPrompter) -> AttendedMcpServers:
    """The servers in a run whose user can be asked."""
    from evoclaw.executors.mcp.elicitation import PersonAnswer, PersonQuestion
    from evoclaw.executors.mcp.servers import AttendedMcpServers
    from evoclaw.tools.question import Question

    async def ask(question: PersonQuestion) -> PersonAnswer | None:
        asked = Question(
            question.id, question.text, question.options, question.multiple, question.own_words
        )
        answer = await prompter.ask(asked)
        return None if answer is None else PersonAnswer(answer.chosen, answer.text)

    return AttendedMcpServers(servers, ask)


def mcp_definitions(settings: Sequence[McpConfig]) -> list[McpServer]:
    """The servers that the `[[mcp]]` tables of the settings define."""
    from evoclaw.executors.mcp.offers import McpServer

    return [McpServer(**msgspec.structs.asdict(server)) for server in settings]
