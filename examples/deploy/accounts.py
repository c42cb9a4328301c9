"""The accounts of a broker of your own: made here, with the rights that EvoClaw's own broker gives.

    python accounts.py add FOLDER orchestrator --role orchestrator
    python accounts.py add FOLDER garage attic          # two agents
    python accounts.py nats FOLDER > users.conf         # for nats/nats.conf; reload: kill -HUP
    python accounts.py mosquitto FOLDER > dynamic-security.json      # for its first start
    python accounts.py commands FOLDER garage attic     # for a Mosquitto that runs

The guide `docs/guides/scale.md` goes through it.

FOLDER holds `accounts.json` (hashes only) and `passwords/NAME`, each readable by you alone: a
password goes to the machine that uses it and can be removed here once it did.
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
    make_folder,
    write_private,
)

ADMIN = "_admin"
"""Who may change Mosquitto's accounts; no agent can have this name."""
CLOSED = ("publishClientSend", "publishClientReceive", "subscribe")
"""What nobody may who was not told so."""


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
    """Make accounts; their passwords are written into files and shown nowhere."""
    for name in options.names:
        password = BrokerAccounts(options.folder).add(name, options.role)
        keep_password(options.folder, name, password)
    return ""


def nats(options: argparse.Namespace) -> str:
    """The users of `nats.conf`, which takes JSON where it takes anything."""
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
    """A topic as NATS spells it."""
    return topic.replace("/", ".").replace("+", "*")


def mosquitto(options: argparse.Namespace) -> str:
    """The whole file of the dynamic-security plug-in, as the broker finds it when it first starts.

    From then on the file is the broker's own.
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
    """What a Mosquitto that runs is told, all at once: one line for its control topic.

    It holds passwords: pipe it, do not keep it.
    """
    found = {account.name: account for account in known(options.folder)}
    told: list[dict[str, object]] = []
    for name in options.names:
        if name not in found:
            raise ConfigError(f"there is no account {name!r}; make it with: accounts.py add")
        password = (options.folder / "passwords" / name).read_text()
        told.append({"command": "createRole", **role(found[name])})
        roles = [{"rolename": name}]
        told.append(
            {"command": "createClient", "username": name, "password": password, "roles": roles}
        )
    return json.dumps({"commands": told}) + "\n"


def role(account: BrokerAccount) -> dict[str, object]:
    """One role for each account, with its topics spelled out: `%u` is not expanded by 2.0."""
    rights = account.rights
    acls = [acl("publishClientSend", name) for name in rights.publish]
    for name in rights.subscribe:
        acls += [acl("subscribeLiteral", name), acl("publishClientReceive", name)]
    return {"rolename": account.name, "acls": acls}


def acl(kind: str, topic: str) -> dict[str, object]:
    return {"acltype": kind, "topic": topic, "priority": 0, "allow": True}


def client(name: str, password: str) -> dict[str, object]:
    """A client with the role of its name; the hash is in the shape of a password file."""
    _, _, rounds, salt, key = password.split("$")
    hashing = {"password": key, "salt": salt, "iterations": int(rounds)}
    return {"username": name, "roles": [{"rolename": name}], **hashing}


def known(folder: Path) -> Iterable[BrokerAccount]:
    found = BrokerAccounts(folder).all()
    if not found:
        raise ConfigError(f"there are no accounts in {folder}; make some with: accounts.py add")
    return found


def keep_password(folder: Path, name: str, password: str) -> None:
    make_folder(folder / "passwords")
    write_private(folder / "passwords" / name, password.encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
