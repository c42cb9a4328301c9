"""An MCP server's configuration, and which of its tools are offered: named, cleaned, approved.

Everything a server lists of its tools is untrusted text: it may be hostile, and it may change after
a person approved it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from typing import Protocol

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError, SchemaError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.schema import MAX_SCHEMA_DEPTH, compile_schema
from evoclaw.core.tools import Effect, Tool
from evoclaw.executors.mcp.oauth_settings import McpOAuth

MAX_TOOL_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 1_000
MAX_NOTE_CHARS = 300
"""Characters of the text beside one parameter."""
MAX_SERVER_TOOLS = 500
PERSON_TIMEOUT_S = 300.0
"""How long a person may take to answer a question that a server asks during a call."""
CANCEL_TIMEOUT_S = 5.0
"""How long to wait for a cancelled call, beyond the timeout of the loop."""

SERVER_NAME = re.compile(r"(?=.{1,32}\Z)[A-Za-z](?:_?[A-Za-z0-9-])*")
"""Never two underscores in a row, nor one at the end: so `server__tool` is unambiguous."""
_STRANGE = re.compile(r"[^A-Za-z0-9_-]")
_LITERAL = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are data, not schema: changing them would change what is valid."""
_NOTES = frozenset({"description", "title", "$comment"})


class ListedTool(Struct, frozen=True):
    """A tool as its server lists it."""

    name: str
    description: str = ""
    parameters: dict[str, JSON] = {}
    output: JSON = None
    hints: dict[str, JSON] = {}
    """Its annotations: `readOnlyHint` and others."""
    task: str = ""
    """Whether it can run as a task: `forbidden`, `optional` or `required`."""
    method: str = "tools/call"
    """The request that runs it; another one for what is no tool of the server."""


class OfferedTool(Struct, frozen=True):
    """A tool that may be offered, and its name on the server."""

    tool: Tool
    remote: str
    digest: str
    as_task: bool = False
    """Whether it must be called as a task."""
    method: str = "tools/call"


class RejectedTool(Struct, frozen=True):
    """A tool that is not offered, and why; for people."""

    name: str
    reason: str
    digest: str = ""
    """Set when only a person's approval is missing."""


class ServerTerms(Struct, frozen=True):
    """The settings by which the tools of one server are offered."""

    server: str
    permissions: frozenset[str]
    trust_hints: bool
    timeout: float
    max_timeout: float


class ToolPins(Protocol):
    """Which tools were approved, and with which digest."""

    def approved(self, server: str, digests: Mapping[str, str]) -> Collection[str]:
        """The names of the tools whose digests are approved; the others are recorded."""
        ...


class NoPins:
    """Approves every tool: for our own servers, and for tests."""

    def approved(self, server: str, digests: Mapping[str, str]) -> Collection[str]:
        """The names of all tools."""
        return digests.keys()


def digest(listed: ListedTool) -> str:
    """A hash of everything that a server lists about a tool."""
    facts = msgspec.to_builtins(listed)
    if not listed.task:
        del facts["task"]  # approvals from before there were tasks stay valid
    if listed.method == "tools/call":
        del facts["method"]
    text = msgspec.json.encode(facts, order="sorted")
    return sha256(text).hexdigest()


def tool_name(server: str, remote: str) -> str:
    """A valid name that no other tool of any server has."""
    plain = f"{server}__{remote}"
    if remote and not _STRANGE.search(remote) and len(plain) <= MAX_TOOL_NAME_CHARS:
        return plain
    mark = sha256(remote.encode(errors="replace")).hexdigest()[:8]
    room = MAX_TOOL_NAME_CHARS - len(server) - len(mark) - 3
    return f"{server}__{_STRANGE.sub('_', remote)[:room]}_{mark}"


def one_line(text: str, limit: int) -> str:
    """Untrusted text as one short line, without control or invisible characters.

    Control, format and private-use characters are removed, among them invisible ones.
    """
    seen = text[: 4 * limit]
    kept = "".join(" " if _unseen(char) else char for char in seen)
    line = " ".join(kept.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _unseen(char: str) -> bool:
    return char.isspace() or unicodedata.category(char)[0] == "C"


def choose(
    listed: Iterable[ListedTool], terms: ServerTerms, pins: ToolPins
) -> tuple[tuple[OfferedTool, ...], tuple[RejectedTool, ...]]:
    """Split a server's tools into those that are offered and those that are rejected."""
    tools = list(listed)
    rejected: list[RejectedTool] = []
    if len(tools) > MAX_SERVER_TOOLS:
        rejected.append(
            RejectedTool(
                "", f"{len(tools) - MAX_SERVER_TOOLS} tools beyond {MAX_SERVER_TOOLS} are ignored"
            )
        )
        tools = tools[:MAX_SERVER_TOOLS]
    names = Counter(tool_name(terms.server, entry.name) for entry in tools)
    valid: dict[str, OfferedTool] = {}
    for entry in tools:
        shown = one_line(entry.name, MAX_TOOL_NAME_CHARS)
        try:
            tool = _tool(entry, terms)
            if names[tool.name] > 1:
                rejected.append(RejectedTool(shown, "the server lists this name more than once"))
                continue
            compile_schema(tool)
            valid[tool.name] = OfferedTool(
                tool, entry.name, digest(entry), entry.task == "required", entry.method
            )
        except SchemaError as refused:
            rejected.append(RejectedTool(shown, one_line(refused.problem, MAX_NOTE_CHARS)))
        except RecursionError:
            rejected.append(RejectedTool(shown, "its schema is nested too deeply"))
    approved = pins.approved(terms.server, {name: offer.digest for name, offer in valid.items()})
    rejected += [
        RejectedTool(name, "new or changed; a person must approve it", offer.digest)
        for name, offer in valid.items()
        if name not in approved
    ]
    return tuple(offer for name, offer in valid.items() if name in approved), tuple(rejected)


def _tool(listed: ListedTool, terms: ServerTerms) -> Tool:
    description = one_line(listed.description, MAX_DESCRIPTION_CHARS) or "nothing"
    description = description.replace('"', "'")
    hints = listed.hints if terms.trust_hints else {}
    parameters = _tidied({"type": "object", **listed.parameters}, listed.name)
    assert is_object(parameters)
    return Tool(
        tool_name(terms.server, listed.name),
        f'A tool of the MCP server {terms.server!r}, which says of it: "{description}"',
        parameters,
        permissions=terms.permissions,
        effect=Effect.READ if hints.get("readOnlyHint") is True else Effect.WRITE,
        timeout=terms.timeout,
        max_timeout=terms.max_timeout,
        idempotent=hints.get("idempotentHint") is True,
        streams=True,
        # The executor itself limits the call; its clock stops while a person is asked.
        slack=CANCEL_TIMEOUT_S + PERSON_TIMEOUT_S,
        outside=True,
        # Whatever its hints say: the arguments leave the control of this machine.
        sends=True,
    )


def _tidied(node: JSON, name: str, depth: int = 1) -> JSON:
    """The same schema, with every text reduced to one line."""
    if depth > MAX_SCHEMA_DEPTH + 1:
        raise SchemaError(name, f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}")
    if is_array(node):
        return [_tidied(child, name, depth + 1) for child in node]
    if not is_object(node):
        return node
    tidy: dict[str, JSON] = {}
    for key, child in node.items():
        if key in _NOTES and isinstance(child, str):
            tidy[key] = one_line(child, MAX_NOTE_CHARS)
        else:
            tidy[key] = child if key in _LITERAL else _tidied(child, name, depth + 1)
    return tidy


class McpServer(Struct, frozen=True):
    """The configuration of a server: a program to start, or a URL to connect to."""

    name: str
    """The prefix of its tools' names."""
    command: tuple[str, ...] = ()
    """The program and its arguments; it uses stdin and stdout."""
    url: str = ""
    """Its streamable HTTP endpoint, instead of a command."""
    env: Mapping[str, str] = {}
    """The complete environment of the program, except `PATH`."""
    cwd: str = ""
    headers: Mapping[str, str] = {}
    """Sent with every HTTP request: a fixed token, for example."""
    permissions: frozenset[str] = frozenset({"network"})
    """The permissions that each of its tools requires."""
    trust_hints: bool = False
    """Trust its tool annotations: read-only, idempotent. Else all of its tools write."""
    timeout: float = 60.0
    max_timeout: float = 300.0
    oauth: McpOAuth | None = None
    """How to sign in to the `url`, if not as a person whose client is registered automatically."""
    start_timeout: float = 30.0
    """Seconds in which it must be connected, and in which it must list its tools."""

    def check(self) -> None:
        """Raise `ConfigError` for an invalid configuration."""
        if not SERVER_NAME.fullmatch(self.name):
            raise ConfigError(
                f"the MCP server name {self.name[:80]!r} must be at most 32 letters, "
                "digits and `-`, with single `_` between them"
            )
        if bool(self.command) == bool(self.url):
            raise ConfigError(f"the MCP server {self.name!r} needs either a `command` or a `url`")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"the url of the MCP server {self.name!r} must be http or https")
        if self.oauth is not None:
            if not self.url:
                raise ConfigError(f"the MCP server {self.name!r} has `oauth`, but no `url`")
            self.oauth.check(self.name)
        if not 0 < self.timeout <= self.max_timeout or self.start_timeout <= 0:
            raise ConfigError(
                f"the timeouts of the MCP server {self.name!r} must be above 0 seconds"
            )
