"""What the Tab key offers in a chat: commands, agents, edges, models, sessions, files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from evoclaw.cli import service_api
from evoclaw.cli.chat_commands import COMMANDS, DEFAULT_EDGE, DEFAULT_MODEL, EDGE_SELECTORS
from evoclaw.cli.client import ServiceClient, ServiceRefused
from evoclaw.cli.terminal_text import clean, one_line, text_of
from evoclaw.core.messages import is_array, is_object

MAX_OFFERED_FILES = 200
MAX_LISTED_FILES = 5_000
"""Entries of a folder that are looked at."""
MAX_OFFERED_SESSIONS = 50


@dataclass
class ChatNames:
    """The names that can be completed; those of the service are fetched now and then."""

    agents: dict[str, str] = field(default_factory=dict[str, str])
    """With their description."""
    edges: dict[str, str] = field(default_factory=dict[str, str])
    """With whether they are online."""
    models: dict[str, str] = field(default_factory=dict[str, str])
    """With the agent that uses them."""
    sessions: dict[str, str] = field(default_factory=dict[str, str])
    """With their title."""
    default_edge: str = ""
    default_agent: str = ""

    async def fetch(self, client: ServiceClient) -> None:
        """Ask the service; what the user may not see stays empty."""
        await self.fetch_edges(client)
        try:
            await self._fetch_agents(client)
            sessions = await service_api.list_sessions(client, MAX_OFFERED_SESSIONS)
        except ServiceRefused as problem:
            if problem.status not in (403, 404, 503):
                raise
            return
        self.sessions = {
            text_of(session, "id"): one_line(text_of(session, "title"), 60) for session in sessions
        }

    async def fetch_edges(self, client: ServiceClient) -> None:
        """Ask the service for its edges."""
        edges = await service_api.visible_edges(client)
        self.edges = {
            text_of(edge, "agent_id"): "online" if edge.get("online") else "offline"
            for edge in edges
        }
        self.default_edge = next(
            (text_of(edge, "agent_id") for edge in edges if edge.get("default")), ""
        )

    async def _fetch_agents(self, client: ServiceClient) -> None:
        listed = service_api.as_object(await client.get(service_api.api_path("agents")))
        found = listed.get("agents")
        agents = [row for row in found if is_object(row)] if is_array(found) else []
        self.agents = {
            text_of(agent, "name"): one_line(text_of(agent, "description"), 60) for agent in agents
        }
        self.default_agent = next(iter(self.agents), "")
        self.models = {
            text_of(agent, "model"): f"of {clean(text_of(agent, 'name'))}"
            for agent in agents
            if agent.get("model")
        }

    def suggest(self, text: str) -> Iterator[tuple[str, int, str]]:
        """What fits at the end of a text, how many characters it replaces, and a note."""
        if text.startswith("/") and not text.startswith("//") and "\n" not in text:
            name, space, rest = text.partition(" ")
            if not space:
                offered = {command: about for command, (about, _) in COMMANDS.items()}
                yield from _matches(offered, name)
                return
            if name == "/attach":
                yield from _files(rest.lstrip(), images=True)
                return
            yield from _matches(self._arguments(name), rest)
            return
        word = text.split()[-1] if text and not text[-1].isspace() else ""
        if word.startswith("@"):
            yield from _files(word[1:])

    def _arguments(self, command: str) -> Mapping[str, str]:
        match command:
            case "/on":
                more = {DEFAULT_EDGE: "the edge of `evoclaw up`"}
                return self.edges | more | dict.fromkeys(EDGE_SELECTORS, "")
            case "/agent":
                return self.agents
            case "/model":
                return self.models | {DEFAULT_MODEL: "of the agent"}
            case "/session":
                return self.sessions
            case _:
                return {}


def _matches(offered: Mapping[str, str], typed: str) -> Iterable[tuple[str, int, str]]:
    for name, about in offered.items():
        if name.startswith(typed) and name == clean(name):
            yield name, len(typed), about


def _files(typed: str, *, images: bool = False) -> Iterator[tuple[str, int, str]]:
    """The files whose path starts like this; folders end in a slash."""
    folder, _, start = typed.rpartition("/")
    where = f"{folder}/" if "/" in typed else ""
    try:
        with os.scandir(os.path.expanduser(where) or ".") as entries:  # noqa: PTH111
            found = sorted(
                f"{entry.name}/" if entry.is_dir() else entry.name
                for entry in islice(entries, MAX_LISTED_FILES)
                if entry.name.startswith(start) and (start or not entry.name.startswith("."))
            )
    except OSError:
        return
    for name in found[:MAX_OFFERED_FILES]:
        is_offered = not images or name.endswith("/") or name.lower().endswith(_IMAGE_ENDINGS)
        if is_offered and name == clean(name):
            yield name, len(start), ""


_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".webp")
