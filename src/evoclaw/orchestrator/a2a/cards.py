"""Agent cards: what the service and its agents say about themselves.

The card that everyone may read names the service only; the agents are in the cards for callers with
a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from evoclaw.core.agent import Agent
from evoclaw.core.messages import JSON
from evoclaw.core.version import VERSION
from evoclaw.orchestrator.a2a.message_parts import INPUT_MODES, OUTPUT_MODES
from evoclaw.orchestrator.a2a.schemas import LEGACY_VERSION, PROTOCOL_VERSION

CARD_PATH = "/.well-known/agent-card.json"
"""Where a card is, below the address of a host or of an agent."""
SERVICE_PATH = "/a2a"
"""Where the service takes requests for its default agent."""
SERVICE_NAME = "EvoClaw"
SERVICE_DESCRIPTION = "Runs LLM agents and their tools on machines of its owner."
SCHEME = "bearer"


class CardInterface(Struct, frozen=True):
    """One way to reach an agent."""

    url: str
    binding: str
    version: str = PROTOCOL_VERSION


def agent_path(agent: str) -> str:
    """Where an agent takes requests."""
    return f"{SERVICE_PATH}/agents/{agent}"


def http_interfaces(url: str) -> tuple[CardInterface, ...]:
    """The ways to reach what is at an HTTP address, the preferred one first."""
    return (
        CardInterface(url, "JSONRPC"),
        CardInterface(url, "HTTP+JSON"),
        CardInterface(url, "JSONRPC", LEGACY_VERSION),
    )


def public_card(base_url: str) -> dict[str, JSON]:
    """The card that everyone may read: it names no agent."""
    skill = _skill("ask", "Ask an agent", "Answers messages; a token shows the agents.", ("agent",))
    url = base_url + SERVICE_PATH
    return _card(SERVICE_NAME, SERVICE_DESCRIPTION, http_interfaces(url), [skill])


def service_card(base_url: str, agents: Mapping[str, Agent], default: str) -> dict[str, JSON]:
    """The card of the service for callers with a token: each agent is a skill."""
    skills = [_agent_skill(agent, base_url, is_default=agent.name == default)
              for agent in agents.values()]  # fmt: skip
    url = base_url + SERVICE_PATH
    return _card(SERVICE_NAME, SERVICE_DESCRIPTION, http_interfaces(url), skills)


def agent_card(agent: Agent, interfaces: Sequence[CardInterface]) -> dict[str, JSON]:
    """The card of one agent."""
    described = agent.description or f"The agent {agent.name!r} of {SERVICE_NAME}."
    skill = _skill(agent.name, agent.title or agent.name, described, _tags(agent))
    return _card(agent.title or agent.name, described, interfaces, [skill])


def _agent_skill(agent: Agent, base_url: str, *, is_default: bool) -> dict[str, JSON]:
    where = f"Its own card: {base_url}{agent_path(agent.name)}{CARD_PATH}."
    described = agent.description or f"The agent {agent.name!r}."
    told = f"{described} {where}" + (" Messages to the service reach it." if is_default else "")
    return _skill(agent.name, agent.title or agent.name, told, _tags(agent))


def _tags(agent: Agent) -> tuple[str, ...]:
    return agent.spec_capabilities or ("agent",)


def _skill(id_: str, name: str, description: str, tags: Sequence[str]) -> dict[str, JSON]:
    return {"id": id_, "name": name, "description": description, "tags": list(tags)}


def _card(
    name: str,
    description: str,
    interfaces: Sequence[CardInterface],
    skills: Sequence[dict[str, JSON]],
) -> dict[str, JSON]:
    """A card of 1.0, with the fields that a client of 0.3 needs beside them."""
    first = interfaces[0]
    told = "An API token of EvoClaw; see `evoclaw token`."
    http_scheme: dict[str, JSON] = {"scheme": "Bearer", "description": told}
    return {
        "name": name,
        "description": description,
        "version": VERSION,
        "supportedInterfaces": [
            {"url": each.url, "protocolBinding": each.binding, "protocolVersion": each.version}
            for each in interfaces
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": False,
            "extendedAgentCard": True,
        },
        "securitySchemes": {
            SCHEME: {"type": "http", **http_scheme, "httpAuthSecurityScheme": http_scheme}
        },
        "securityRequirements": [{"schemes": {SCHEME: {"list": []}}}],
        "defaultInputModes": list(INPUT_MODES),
        "defaultOutputModes": list(OUTPUT_MODES),
        "skills": list(skills),
        "url": first.url,
        "preferredTransport": first.binding,
        "protocolVersion": f"{LEGACY_VERSION}.0",
        "security": [{SCHEME: []}],
        "supportsAuthenticatedExtendedCard": True,
    }
