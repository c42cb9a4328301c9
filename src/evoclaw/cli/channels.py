"""`evoclaw channels`: the ways that people have to agents, and their accounts at the broker."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Protocol

from evoclaw.cli import exits
from evoclaw.cli.approvals import person_here
from evoclaw.cli.fleet import show
from evoclaw.cli.needs import ChannelFacts
from evoclaw.cli.render import tell
from evoclaw.cli.tables import show_rows
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON


class Needs(Protocol):
    """What this command needs of the composition root."""

    def channels(self, env: Mapping[str, str]) -> Sequence[ChannelFacts]:
        """Those that are configured."""
        ...

    def add_user(self, name: str, env: Mapping[str, str]) -> str:
        """Make a person's account at our broker, or give it another password: the password."""
        ...

    def remove_user(self, name: str, env: Mapping[str, str]) -> bool:
        """Take a person's account away; False if there is none."""
        ...


def channels(options: Namespace, wiring: Needs) -> int:
    """Do one of the actions."""
    if options.action in ("user", "remove-user") and person_here().kind != "person":
        raise ConfigError("only a person makes accounts or takes them away; an agent never does")
    match options.action:
        case "user":
            return _user(options, wiring)
        case "remove-user":
            if not wiring.remove_user(options.name, os.environ):
                raise ConfigError(f"no person has an account {options.name!r} at our broker")
            tell(f"{options.name} is shut out")
            return exits.OK
        case _:
            return _list(options, wiring)


def _list(options: Namespace, wiring: Needs) -> int:
    found = wiring.channels(os.environ)
    rows: list[dict[str, JSON]] = [
        {"name": one.name, "kind": one.kind, "agent": one.agent, "senders": list(one.senders)}
        for one in found
    ]
    if options.json:
        show(rows)
    else:
        lines = [[one.name, one.kind, one.agent, ", ".join(one.senders)] for one in found]
        show_rows(lines, "none are configured: see [[channels]] in evoclaw.toml")
    return exits.OK


def _user(options: Namespace, wiring: Needs) -> int:
    password = wiring.add_user(options.name, os.environ)
    if options.json:
        show({"name": options.name, "password": password})
        return exits.OK
    show(password)
    tell(
        f"the password of {options.name}: keep it, it is not shown again; "
        f"take it back with `evoclaw channels remove-user {options.name}`"
    )
    return exits.OK
