"""The accounts of the embedded broker, and the topics each may publish and subscribe to."""

from __future__ import annotations

import asyncio
import string
from base64 import b64encode
from contextlib import suppress
from enum import StrEnum
from hashlib import pbkdf2_hmac, sha256
from pathlib import Path
from secrets import choice, token_bytes, token_urlsafe
from time import time

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.transport.private_files import locked, write_private
from evoclaw.transport.topics import (
    BROADCAST,
    ID_RULE,
    A2aTopic,
    HomeAssistantTopic,
    Mailbox,
    TopicKind,
    a2a_topic,
    discovery_topic,
    every,
    every_box,
    home_assistant_topic,
    is_agent_id,
    topic,
)

IN_USE_TIMEOUT_S, IN_USE_POLL_INTERVAL_S = 5.0, 0.05
_SPOKEN = (TopicKind.REPORTS, TopicKind.STATUS, TopicKind.CAPABILITIES)
"""The topics that an agent publishes and an orchestrator subscribes to."""


class BrokerRole(StrEnum):
    """The role of an account."""

    AGENT = "agent"
    ORCHESTRATOR = "orchestrator"
    USER = "user"
    """A person, or that person's program: sends messages to agents and receives the replies."""
    HOME_ASSISTANT = "home_assistant"
    """A user that also sees the edges, and may press their buttons."""


PERSONAL_ROLES = (BrokerRole.USER, BrokerRole.HOME_ASSISTANT)
"""The roles of accounts that people create with `evoclaw channels user`."""
_HOME_ASSISTANT_STATES = tuple(
    home_assistant_topic("+", kind)
    for kind in (HomeAssistantTopic.STATE, HomeAssistantTopic.RESULT)
)
_DISCOVERY_SUBSCRIPTIONS = ("+/+/+/config", "+/+/+/+/config")
"""Home Assistant subscribes to each kind of entity, below any discovery prefix."""
_BIRTH = "+/status"
"""Where Home Assistant says that it has started, below its discovery prefix."""


class TopicRights(Struct, frozen=True):
    """The topics an account may use, literal except for `+`; all others are refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


class HashedPasswords(Struct, frozen=True):
    """A password hashed for each engine, so that changing the engine keeps all passwords."""

    nats: str
    mosquitto: str


class BrokerAccount(Struct, frozen=True, omit_defaults=True):
    """An account of the broker."""

    name: str
    role: BrokerRole
    password: HashedPasswords
    expires: float = 0.0
    """Unix seconds: that of an invitation whose edge has not joined yet. 0: never."""

    @property
    def rights(self) -> TopicRights:
        """The topics it may use: an agent its own, an orchestrator the reverse for all agents.

        A user has an inbox and an outbox at each agent; the last level of their topics is the
        account's name, as it is of the buttons that Home Assistant presses. Its requests of A2A
        need a token besides; the replies to them name the account in their topic.
        """
        if self.role is BrokerRole.ORCHESTRATOR:
            published = (every(TopicKind.COMMANDS), BROADCAST, every_box(Mailbox.OUTBOX))
            subscribed = (*(every(kind) for kind in _SPOKEN), every_box(Mailbox.INBOX))
            cards, replies = (
                a2a_topic(A2aTopic.DISCOVERY, *"+++"),
                a2a_topic(A2aTopic.REPLY, *"++++"),
            )
            buttons = home_assistant_topic("+", HomeAssistantTopic.COMMAND, "+")
            return TopicRights(
                (*published, discovery_topic("+", "+"), *_HOME_ASSISTANT_STATES, cards, replies),
                (*subscribed, buttons, a2a_topic(A2aTopic.REQUEST, *"+++")),
            )
        if self.role in PERSONAL_ROLES:
            inboxes, outboxes = (every_box(box, self.name) for box in Mailbox)
            if self.role is BrokerRole.USER:
                replies = a2a_topic(A2aTopic.REPLY, "+", "+", self.name, "+")
                return TopicRights(
                    (inboxes, a2a_topic(A2aTopic.REQUEST, *"+++")),
                    (outboxes, a2a_topic(A2aTopic.DISCOVERY, *"+++"), replies),
                )
            buttons = home_assistant_topic("+", HomeAssistantTopic.COMMAND, self.name)
            return TopicRights(
                (inboxes, buttons, _BIRTH),
                (outboxes, *_DISCOVERY_SUBSCRIPTIONS, *_HOME_ASSISTANT_STATES),
            )
        published = tuple(topic(self.name, kind) for kind in _SPOKEN)
        return TopicRights(published, (topic(self.name, TopicKind.COMMANDS), BROADCAST))


_OWNERS = {
    BrokerRole.AGENT: "an agent",
    BrokerRole.ORCHESTRATOR: "an orchestrator",
    BrokerRole.USER: "a user",
    BrokerRole.HOME_ASSISTANT: "Home Assistant",
}


class BrokerAccounts:
    """The accounts of one broker, in a file that several processes may change."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "accounts.json"
        self._in_use = folder / "accounts.in-use"
        """Names the version of the accounts that the broker uses."""

    def all(self) -> tuple[BrokerAccount, ...]:
        """All accounts, in the order of their creation."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=tuple[BrokerAccount, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as problem:
            raise ConfigError(
                f"the accounts in {self.path} cannot be read ({problem}); restore the "
                "file from a backup, or move it away and give every edge a new account"
            ) from None

    def valid(self, now: float) -> tuple[BrokerAccount, ...]:
        """The accounts that have not expired."""
        return tuple(
            account for account in self.all() if not account.expires or now < account.expires
        )

    def invite(self, name: str, token: str, expires: float) -> None:
        """Let a new edge connect with a token until it expires, or until it has joined.

        The password of an edge that joined is not replaced: the token would be its password.
        """
        self._put(name, BrokerRole.AGENT, new=False, password=token, expires=expires)

    def stamp(self) -> tuple[int, int] | None:
        """A value that changes whenever any process changes the file."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def mark_in_use(self, stamp: tuple[int, int] | None) -> None:
        """Record that the broker uses the accounts with this stamp."""
        write_private(self._in_use, repr(stamp).encode())

    async def wait_until_in_use(self) -> None:
        """Wait until the broker uses the newest accounts, but not for ever.

        It reads changes of other processes once a second; a client that connects before is refused.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(IN_USE_TIMEOUT_S):
                while True:
                    if self._is_in_use():
                        return
                    await asyncio.sleep(IN_USE_POLL_INTERVAL_S)

    def _is_in_use(self) -> bool:
        try:
            return self._in_use.read_bytes() == repr(self.stamp()).encode()
        except FileNotFoundError:
            return True  # no broker that says so

    def add(self, name: str, role: BrokerRole = BrokerRole.AGENT) -> str:
        """Create an account; its password is returned only here and stored hashed."""
        if not is_agent_id(name):
            raise ConfigError(f"{name!r} is not a valid account name: {ID_RULE}")
        return self._put(name, role, new=True)

    def renew(self, name: str, role: BrokerRole = BrokerRole.AGENT, *, password: str = "") -> str:
        """Set an account's password, or create it; without a password, a random one is used."""
        if not is_agent_id(name):
            raise ConfigError(f"{name!r} is not a valid account name: {ID_RULE}")
        return self._put(name, role, new=False, password=password)

    def remove(self, name: str) -> None:
        """Remove an account."""
        with locked(self.path):
            known = self.all()
            kept = tuple(account for account in known if account.name != name)
            if len(kept) == len(known):
                raise ConfigError(f"unknown account {name!r}; {_listed(known)}")
            write_private(self.path, msgspec.json.encode(kept))

    def renew_user(self, name: str, role: BrokerRole = BrokerRole.USER) -> str:
        """Create the account of a person, or change its password; return the password."""
        before = self.role_of(name)
        if before is not None and before not in PERSONAL_ROLES:
            raise ConfigError(
                f"{name!r} is the account of an edge or orchestrator; use another name"
            )
        return self.renew(name, role)

    def remove_user(self, name: str) -> bool:
        """Remove the account of a person; False if it does not exist."""
        if self.role_of(name) not in PERSONAL_ROLES:
            return False
        self.remove(name)
        return True

    def role_of(self, name: str) -> BrokerRole | None:
        """The role of an account; None if it does not exist."""
        return next((account.role for account in self.all() if account.name == name), None)

    def _put(
        self, name: str, role: BrokerRole, *, new: bool, password: str = "", expires: float = 0.0
    ) -> str:
        with locked(self.path):
            known = {account.name: account for account in self.valid(time())}
            before = known.get(name)
            if before is not None and (new or before.role is not role):
                owner = _OWNERS[before.role]
                raise ConfigError(
                    f"the account {name!r} already exists, of {owner}; choose another "
                    "name, or remove that account first"
                )
            if before is not None and expires and not before.expires:
                raise ConfigError(
                    f"the edge {name!r} has already joined; choose another name, or remove it "
                    f"first with `evoclaw edges revoke {name}`"
                )
            password = password or token_urlsafe(24)
            known[name] = BrokerAccount(name, role, hashed(password), expires)
            write_private(self.path, msgspec.json.encode(tuple(known.values())))
        return password


def _listed(known: tuple[BrokerAccount, ...]) -> str:
    return f"known: {', '.join(account.name for account in known) or 'none'}"


def client_id(name: str, password: str) -> str:
    """A client id that only the owner of the account can derive.

    A broker closes a connection when another account connects with the same client id, and not
    every broker can bind the id to the account: so the id must not be guessable.
    """
    return f"{name}-{sha256(password.encode()).hexdigest()[:24]}"


def hashed(password: str) -> HashedPasswords:
    """Hash a password for both engines."""
    salt = token_bytes(12)
    # Few rounds are enough for 192 random bits, and every connect pays for each round.
    key = pbkdf2_hmac("sha512", password.encode(), salt, 101, 64)
    mosquitto = f"$7$101${b64encode(salt).decode()}${b64encode(key).decode()}"
    return HashedPasswords(_bcrypt(password) or password, mosquitto)


def _bcrypt(password: str) -> str | None:
    """The bcrypt hash that NATS requires, by the system's libcrypt; None without it."""
    import ctypes

    letters = "./" + string.ascii_letters + string.digits
    salt = "".join(choice(letters) for _ in range(21)) + choice(".Oeu")
    for name in ("libcrypt.so.1", "libcrypt.so.2", None):
        try:
            # crypt() returns a static buffer: only one thread may use it at a time.
            crypt = ctypes.PyDLL(name).crypt
        except (OSError, AttributeError):
            continue
        crypt.argtypes, crypt.restype = [ctypes.c_char_p, ctypes.c_char_p], ctypes.c_char_p
        made: bytes | None = crypt(password.encode(), f"$2b$04${salt}".encode())
        if made is not None and made.startswith(b"$2b$04$") and len(made) == 60:
            return made.decode()
    return None
