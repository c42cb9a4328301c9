"""`evoclaw channels`: the configured channels, and accounts of people at the broker."""

from __future__ import annotations

import os

import click

from evoclaw.cli import exits
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import print_table
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON


@click.group(cls=CommandGroup, default="list")
def channels() -> None:
    """List channels, and manage the broker accounts of people."""


@channels.command("list", help="List the configured channels (the default)")
@json_option()
def _list(*, as_json: bool) -> int:
    from evoclaw.wiring.settings import orchestrator_settings

    found = orchestrator_settings(os.environ).channels
    rows: list[dict[str, JSON]] = [
        {
            "name": channel.name,
            "kind": channel.kind,
            "agent": channel.agent,
            "senders": list(channel.senders),
        }
        for channel in found
    ]
    if as_json:
        print_out(rows)
    else:
        lines = [
            [channel.name, channel.kind, channel.agent, ", ".join(channel.senders)]
            for channel in found
        ]
        print_table(lines, "no channels are configured: see [[channels]] in evoclaw.toml")
    return exits.OK


@channels.command("user", help="Create a person's broker account, or give it a new password")
@click.argument("name", help="Name of the person, as in `senders` of a channel")
@json_option()
def _user(name: str, *, as_json: bool) -> int:
    from evoclaw.wiring.fleet import own_broker_accounts

    _check_person()
    password = own_broker_accounts(os.environ).renew_user(name)
    if as_json:
        print_out({"name": name, "password": password})
        return exits.OK
    print_out(password)
    print_err(
        f"the password of {name}: store it now, it is not shown again; "
        f"delete the account with `evoclaw channels remove-user {name}`"
    )
    return exits.OK


@channels.command("remove-user", help="Delete a person's broker account")
@click.argument("name", help="Name of the person, as in `senders` of a channel")
def _remove_user(name: str) -> int:
    from evoclaw.wiring.fleet import own_broker_accounts

    _check_person()
    if not own_broker_accounts(os.environ).remove_user(name):
        raise ConfigError(
            f"unknown account {name!r}; see `senders` of your channels in evoclaw.toml"
        )
    print_err(f"{name}: account deleted")
    return exits.OK


def _check_person() -> None:
    if identify_answerer().kind != "person":
        raise ConfigError("only a person may create or delete accounts, not a command of an agent")
