"""`PinFile`: the MCP tools that a person approved, by digest, and those that are pending."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.executors.mcp.private_file import PrivateFile


class ServerPins(Struct, frozen=True):
    """The tools of one server."""

    approved: dict[str, str] = {}
    """Name and digest."""
    waiting: dict[str, str] = {}
    """New and changed tools, as last listed."""


class PinFile:
    """Approvals in a JSON file that several processes may change, under a lock."""

    def __init__(self, path: Path, *, trust_first: bool = False, owner: str = "") -> None:
        """Set the file.

        Args:
            path: The file.
            trust_first: Whether the tools of a server seen for the first time are trusted.
            owner: The edge whose servers are looked up, as `OWNER/SERVER`; empty: none.
        """
        self._file, self._trust_first, self._owner = PrivateFile(path), trust_first, owner

    def key(self, server: str) -> str:
        """The name of a server in this file."""
        return f"{self._owner}/{server}" if self._owner else server

    def digests(self, server: str) -> dict[str, str]:
        """The approved tools of a server, and their digests."""
        return self.all().get(self.key(server), ServerPins()).approved

    def version(self) -> tuple[int, int, int] | None:
        """A value that changes with the file; None while there is none."""
        return self._file.version()

    def all(self) -> dict[str, ServerPins]:
        """Every server that was seen."""
        try:
            found = self._file.read()
            return msgspec.json.decode(found, type=dict[str, ServerPins]) if found else {}
        except (OSError, msgspec.DecodeError) as problem:
            raise ConfigError(
                f"{self._file.path} cannot be read ({problem}); restore a backup, or move it away "
                "and approve again"
            ) from None

    def approved(self, server: str, digests: Mapping[str, str]) -> Collection[str]:
        """The names of the tools whose digests are approved; the others become pending."""
        server = self.key(server)
        pinned = self.all().get(server)
        if pinned is None and self._trust_first:
            pinned = self._change(server, lambda now: now or ServerPins(dict(digests)))
        pinned = pinned or ServerPins()
        if _waiting(pinned, digests) != pinned.waiting:
            # Read again under the lock: another process may have changed the file.
            pinned = self._change(server, lambda now: _noted(now or ServerPins(), digests))
        return digests.keys() - _waiting(pinned, digests).keys()

    def approve(self, server: str, names: Collection[str] | None = None) -> ServerPins:
        """Approve the pending tools, or the named ones of them, as last listed."""

        def approve(pinned: ServerPins | None) -> ServerPins:
            if pinned is None:
                known = ", ".join(sorted(self.all())) or "none"
                raise ConfigError(f"unknown MCP server {server!r}; known servers: {known}")
            waits = pinned.waiting
            chosen = waits if names is None else {name: waits.get(name, "") for name in names}
            if missing := [name for name, found in chosen.items() if not found]:
                raise ConfigError(
                    f"no tool waits for approval under the name {', '.join(sorted(missing))}"
                )
            remaining = {name: found for name, found in waits.items() if name not in chosen}
            return ServerPins({**pinned.approved, **chosen}, remaining)

        return self._change(server, approve)

    def forget(self, server: str) -> None:
        """Revoke every approval of a server."""
        self._change(server, lambda _: ServerPins())

    def _change(self, server: str, update: Callable[[ServerPins | None], ServerPins]) -> ServerPins:
        pinned = ServerPins()

        def changed() -> bytes:
            nonlocal pinned
            known = self.all()
            known[server] = pinned = update(known.get(server))
            return msgspec.json.format(msgspec.json.encode(known))

        self._file.change(changed)
        return pinned


def _waiting(pinned: ServerPins, digests: Mapping[str, str]) -> dict[str, str]:
    """The listed tools whose digests are not approved."""
    return {name: found for name, found in digests.items() if pinned.approved.get(name) != found}


def _noted(pinned: ServerPins, digests: Mapping[str, str]) -> ServerPins:
    return replace(pinned, waiting=_waiting(pinned, digests))
