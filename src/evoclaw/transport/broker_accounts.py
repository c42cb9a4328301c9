"""The accounts of the embedded broker, and the topics each may publish and subscribe to."""

from __future__ import annotations

import fcntl
import os
import string
from base64 import b64encode
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from hashlib import pbkdf2_hmac, sha256
from pathlib import Path
from secrets import choice, token_bytes, token_urlsafe

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.transport.topics import (
    BROADCAST,
    ID_RULE,
    Mailbox,
    TopicKind,
    every,
    every_box,
    is_agent_id,
    topic,
)

_SPOKEN = (TopicKind.REPORTS, TopicKind.STATUS, TopicKind.CAPABILITIES)
"""What an agent says and an orchestrator listens to."""


class BrokerRole(StrEnum):
    """Which side of the wire an account is on."""

    AGENT = "agent"
    ORCHESTRATOR = "orchestrator"
    USER = "user"
    """A person, or a program that speaks for one: says something to agents, hears the answers."""


class TopicRights(Struct, frozen=True):
    """Topics, literal but for `+`; everything else is refused."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


class HashedPasswords(Struct, frozen=True):
    """A password as each engine wants it, so that an engine can be changed and no password."""

    nats: str
    mosquitto: str


class BrokerAccount(Struct, frozen=True):
    """One who may connect."""

    name: str
    role: BrokerRole
    password: HashedPasswords

    @property
    def rights(self) -> TopicRights:
        """What it may do: an agent on its own topics, an orchestrator the reverse on everyone's.

        A user has two boxes at each agent and nothing else: whose they are is the topic's last
        word, which is the account's name.
        """
        if self.role is BrokerRole.ORCHESTRATOR:
            heard = (*(every(kind) for kind in _SPOKEN), every_box(Mailbox.INBOX))
            return TopicRights(
                (every(TopicKind.COMMANDS), BROADCAST, every_box(Mailbox.OUTBOX)), heard
            )
        if self.role is BrokerRole.USER:
            return TopicRights(
                (every_box(Mailbox.INBOX, self.name),), (every_box(Mailbox.OUTBOX, self.name),)
            )
        said = tuple(topic(self.name, kind) for kind in _SPOKEN)
        return TopicRights(said, (topic(self.name, TopicKind.COMMANDS), BROADCAST))


class BrokerAccounts:
    """The accounts of one broker, in a file that several processes may change."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "accounts.json"

    def all(self) -> tuple[BrokerAccount, ...]:
        """Every account, in the order they were made."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=tuple[BrokerAccount, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError) as problem:
            raise ConfigError(
                f"the accounts in {self.path} cannot be read ({problem}); put a copy back, or "
                "move the file away and give every edge a new account"
            ) from None

    def stamp(self) -> tuple[int, int] | None:
        """Changes with every change of the file, by any process."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def add(self, name: str, role: BrokerRole = BrokerRole.AGENT) -> str:
        """Make an account; its password is shown this once and kept only hashed."""
        if not is_agent_id(name):
            raise ConfigError(f"{name!r} is no name for an account: {ID_RULE}")
        return self._put(name, role, new=True)

    def renew(self, name: str, role: BrokerRole = BrokerRole.AGENT, *, password: str = "") -> str:
        """Give an account another password, or make it; a random one unless it is given."""
        if not is_agent_id(name):
            raise ConfigError(f"{name!r} is no name for an account: {ID_RULE}")
        return self._put(name, role, new=False, password=password)

    def remove(self, name: str) -> None:
        """Take an account away."""
        with locked(self.path):
            known = self.all()
            kept = tuple(account for account in known if account.name != name)
            if len(kept) == len(known):
                raise ConfigError(f"there is no account {name!r}; {_listed(known)}")
            write_private(self.path, msgspec.json.encode(kept))

    def renew_user(self, name: str) -> str:
        """Create the account of a person, or give it another password; returns the password."""
        role = self._role_of(name)
        if role is not None and role is not BrokerRole.USER:
            raise ConfigError(
                f"{name!r} is the account of an edge or orchestrator; use another name"
            )
        return self.renew(name, BrokerRole.USER)

    def remove_user(self, name: str) -> bool:
        """Remove the account of a person; False if there is none."""
        if self._role_of(name) is not BrokerRole.USER:
            return False
        self.remove(name)
        return True

    def _role_of(self, name: str) -> BrokerRole | None:
        return next((account.role for account in self.all() if account.name == name), None)

    def _put(self, name: str, role: BrokerRole, *, new: bool, password: str = "") -> str:
        with locked(self.path):
            known = {account.name: account for account in self.all()}
            before = known.get(name)
            if before is not None and (new or before.role is not role):
                whose = "a user" if before.role is BrokerRole.USER else f"an {before.role}"
                raise ConfigError(
                    f"there is an account {name!r} already, of {whose}; choose another "
                    "name, or take that account away first"
                )
            password = password or token_urlsafe(24)
            known[name] = BrokerAccount(name, role, hashed(password))
            write_private(self.path, msgspec.json.encode(tuple(known.values())))
        return password


def _listed(known: tuple[BrokerAccount, ...]) -> str:
    return f"known: {', '.join(account.name for account in known) or 'none'}"


def client_id(name: str, password: str) -> str:
    """A name for the connection that only the owner of the account knows.

    A broker ends a connection when another comes with the same client id, whoever's it is, and
    not every broker can be told to tie the id to the account: so it must not be guessed.
    """
    return f"{name}-{sha256(password.encode()).hexdigest()[:24]}"


def hashed(password: str) -> HashedPasswords:
    """A password as the engines keep it."""
    salt = token_bytes(12)
    # Few rounds are enough: 192 random bits cannot be guessed, and every connect pays for them.
    key = pbkdf2_hmac("sha512", password.encode(), salt, 101, 64)
    mosquitto = f"$7$101${b64encode(salt).decode()}${b64encode(key).decode()}"
    return HashedPasswords(_bcrypt(password) or password, mosquitto)


def _bcrypt(password: str) -> str | None:
    """The only hash that NATS takes, made by the system's own library; None where it has none."""
    import ctypes

    letters = "./" + string.ascii_letters + string.digits
    salt = "".join(choice(letters) for _ in range(21)) + choice(".Oeu")
    for name in ("libcrypt.so.1", "libcrypt.so.2", None):
        try:
            # It answers in a buffer of its own: no other thread may come between.
            crypt = ctypes.PyDLL(name).crypt
        except (OSError, AttributeError):
            continue
        crypt.argtypes, crypt.restype = [ctypes.c_char_p, ctypes.c_char_p], ctypes.c_char_p
        made: bytes | None = crypt(password.encode(), f"$2b$04${salt}".encode())
        if made is not None and made.startswith(b"$2b$04$") and len(made) == 60:
            return made.decode()
    return None


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Alone with a file, among all processes that ask."""
    make_folder(path.parent)
    with _as_advice(path):
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def make_folder(folder: Path) -> None:
    """Make a folder that is its owner's alone."""
    with _as_advice(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Replace a file in one go, readable by its owner alone; a crash leaves the old or the new."""
    draft = path.with_name(f"{path.name}.new")
    with _as_advice(path):
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(file)
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _as_advice(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as problem:
        raise ConfigError(
            f"cannot write {path}: {problem.strerror}; make room there, or choose another place"
        ) from None
