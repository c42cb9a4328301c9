"""`SignInFile`: the OAuth tokens of MCP servers, in a file that only its owner reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.executors.mcp.private_file import PrivateFile


class StoredSignIn(Struct, frozen=True, omit_defaults=True):
    """What one sign-in left: tokens, and where they may be sent."""

    url: str
    """The server's address: tokens of another address are not used."""
    tokens: dict[str, JSON] = {}
    expires_at: float | None = None
    """When the access token expires, in Unix seconds."""
    client: dict[str, JSON] = {}
    """The client that was registered."""
    issuer: dict[str, JSON] = {}
    """The metadata of the authorization server: where tokens are refreshed."""
    resource: dict[str, JSON] = {}
    """The metadata of the protected resource."""
    missing_scope: str = ""
    """Scopes that the server asked for since: the next sign-in requests them too."""

    def __repr__(self) -> str:
        """Without secrets: it may end up in a log."""
        return f"StoredSignIn({self.url!r})"


class SignInFile:
    """The sign-ins of one machine, by the name of the server."""

    def __init__(self, path: Path, *, owner: str = "") -> None:
        """Set the file, and the edge whose servers are looked up, as `OWNER/SERVER`."""
        self._file, self._owner = PrivateFile(path), owner

    def key(self, server: str) -> str:
        """The name of a server in this file, and for `evoclaw mcp login`."""
        return f"{self._owner}/{server}" if self._owner else server

    def version(self) -> object:
        """A value that changes with the file."""
        return self._file.version()

    def get(self, server: str, url: str) -> StoredSignIn:
        """The sign-in of a server; an empty one if there is none for this address."""
        found = self._all().get(self.key(server))
        return found if found is not None and found.url == url else StoredSignIn(url)

    def names(self) -> list[str]:
        """The servers with tokens."""
        return sorted(name for name, stored in self._all().items() if stored.tokens)

    def change(
        self, server: str, url: str, update: Callable[[StoredSignIn], StoredSignIn]
    ) -> StoredSignIn:
        """Change the sign-in of a server, under a lock."""
        made = StoredSignIn(url)

        def changed() -> bytes:
            nonlocal made
            known = self._all()
            known[self.key(server)] = made = update(self.get(server, url))
            return msgspec.json.encode(known)

        self._file.change(changed)
        return made

    def forget(self, server: str) -> bool:
        """Delete the tokens of a server; whether there were any."""
        found = False

        def changed() -> bytes:
            nonlocal found
            known = self._all()
            found = known.pop(self.key(server), None) is not None
            return msgspec.json.encode(known)

        self._file.change(changed)
        return found

    def _all(self) -> dict[str, StoredSignIn]:
        try:
            content = self._file.read()
            return msgspec.json.decode(content, type=dict[str, StoredSignIn]) if content else {}
        except OSError as problem:
            raise self._unreadable(problem.strerror or "") from None
        except msgspec.DecodeError:
            # Its message might quote a token.
            raise self._unreadable("it is not what EvoClaw wrote") from None

    def _unreadable(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self._file.path} cannot be read ({why}); delete it, and sign in again with "
            "`evoclaw mcp login NAME`"
        )
