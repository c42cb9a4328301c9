"""Create accounts for your own broker, with the rights that the embedded broker gives.

    python accounts.py add FOLDER orchestrator --role orchestrator
    python accounts.py add FOLDER garage attic          # two agents
    python accounts.py nats FOLDER > users.conf         # for nats/nats.conf; reload: kill -HUP
    python accounts.py mosquitto FOLDER > dynamic-security.json      # for its first start
    python accounts.py commands FOLDER garage attic     # for a running Mosquitto

The guide `docs/guides/scale.md` shows how to use it.

FOLDER contains `accounts.json` (hashes only) and `passwords/NAME`, each readable by you alone.
Copy a password to the machine that uses it; you can delete it here afterwards.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from secrets import token_urlsafe

from evoclaw.core.errors import ConfigError
from evoclaw.transport.broker_accounts import (
    BrokerAccount,
    BrokerAccounts,
    BrokerRole,
    hashed,
)
from evoclaw.transport.private_files import make_private_folder, write_private

ADMIN = "_admin"
"""The account that may change Mosquitto's accounts; no agent can have this name."""
CLOSED = ("publishClientSend", "publishClientReceive", "subscribe")
"""What is denied without an explicit permission."""


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        told = options.does(options)
    except (ConfigError, OSError) as problem:
        sys.stderr.write(f"accounts.py: {problem}\n")
        return 2
    sys.stdout.write(told)
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = top.add_subparsers(required=True, metavar="ACTION")
    for name, does in (
        ("add", add),
        ("nats", nats),
        ("mosquitto", mosquitto),
        ("commands", commands),
    ):
        action = actions.add_parser(name)
        action.set_defaults(does=does)
        action.add_argument("folder", type=Path)
        if name in ("add", "commands"):
            action.add_argument("names", nargs="+")
        if name == "add":
            action.add_argument(
                "--role", type=BrokerRole, choices=list(BrokerRole), default=BrokerRole.AGENT
            )
    return top


def add(options: argparse.Namespace) -> str:
    """Create accounts; their passwords are written to files and never printed."""
    for name in options.names:
        password = BrokerAccounts(options.folder).add(name, options.role)
        keep_password(options.folder, name, password)
    return ""


def nats(options: argparse.Namespace) -> str:
    """The users of `nats.conf`, which accepts JSON."""
    users = [nats_user(account) for account in known(options.folder)]
    return "users: " + json.dumps(users, indent=2) + "\n"


def nats_user(account: BrokerAccount) -> dict[str, object]:
    rights = account.rights
    return {
        "user": account.name,
        "password": account.password.nats,
        "permissions": {
            "publish": {"allow": [subject(name) for name in rights.publish]},
            "subscribe": {"allow": [subject(name) for name in rights.subscribe]},
        },
        "allowed_connection_types": ["MQTT"],
    }


def subject(topic: str) -> str:
    """The NATS subject of a topic."""
    return topic.replace("/", ".").replace("+", "*")


def mosquitto(options: argparse.Namespace) -> str:
    """The configuration of the dynamic security plug-in for the first start of the broker.

    After that the broker owns the file.
    """
    path = options.folder / "passwords" / ADMIN
    if not path.exists():
        keep_password(options.folder, ADMIN, token_urlsafe(24))
    control = "$CONTROL/dynamic-security/#"
    acls = [acl(kind, control) for kind in (*CLOSED[:2], "subscribePattern")]
    found = known(options.folder)
    state = {
        "defaultACLAccess": {**dict.fromkeys(CLOSED, False), "unsubscribe": True},
        "clients": [
            client(ADMIN, hashed(path.read_text()).mosquitto),
            *(client(account.name, account.password.mosquitto) for account in found),
        ],
        "groups": [],
        "roles": [{"rolename": ADMIN, "acls": acls}, *(role(account) for account in found)],
    }
    return json.dumps(state, indent=1) + "\n"


def commands(options: argparse.Namespace) -> str:
    """The commands for a running Mosquitto: one message, in one line, for its control topic.

    It contains passwords: pipe it, do not store it.
    """
    found = {account.name: account for account in known(options.folder)}
    told: list[dict[str, object]] = []
    for name in options.names:
        if name not in found:
            raise ConfigError(f"unknown account {name!r}; create it with: accounts.py add")
        password = (options.folder / "passwords" / name).read_text()
        told.append({"command": "createRole", **role(found[name])})
        roles = [{"rolename": name}]
        told.append(
            {"command": "createClient", "username": name, "password": password, "roles": roles}
        )
    return json.dumps({"commands": told}) + "\n"


def role(account: BrokerAccount) -> dict[str, object]:
    """One role per account, with its topics spelled out: Mosquitto 2.0 does not expand `%u`."""
    rights = account.rights
    acls = [acl("publishClientSend", name) for name in rights.publish]
    for name in rights.subscribe:
        acls += [acl("subscribeLiteral", name), acl("publishClientReceive", name)]
    return {"rolename": account.name, "acls": acls}


def acl(kind: str, topic: str) -> dict[str, object]:
    return {"acltype": kind, "topic": topic, "priority": 0, "allow": True}


def client(name: str, password: str) -> dict[str, object]:
    """A client with the role of its name; the hash has the format of a password file."""
    _, _, rounds, salt, key = password.split("$")
    hashing = {"password": key, "salt": salt, "iterations": int(rounds)}
    return {"username": name, "roles": [{"rolename": name}], **hashing}


def known(folder: Path) -> Iterable[BrokerAccount]:
    found = BrokerAccounts(folder).all()
    if not found:
        raise ConfigError(f"no accounts in {folder}; create some with: accounts.py add")
    return found


def keep_password(folder: Path, name: str, password: str) -> None:
    make_private_folder(folder / "passwords")
    write_private(folder / "passwords" / name, password.encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
