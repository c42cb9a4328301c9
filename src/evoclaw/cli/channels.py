"""`evoclaw channels`: the channels and their state, who may use them, and broker accounts."""

from __future__ import annotations

import asyncio
import os

import click

from evoclaw.cli import exits, service_api
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.client import ServiceClient, ServiceNotRunning, open_client, with_client
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import clean, format_time, print_table, text_of
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_object

_TEXTS = ("state", "account", "problem", "fix", "last_problem")
_NUMBERS = (
    "changed_at",
    "last_received_at",
    "last_sent_at",
    "refused",
    "retrying",
    "given_up",
    "last_problem_at",
)


@click.group(cls=CommandGroup, default="list")
def channels() -> None:
    """List and test channels, and manage who may use them."""


@channels.command("list", help="List the configured channels and their state (the default)")
@json_option()
def _list(*, as_json: bool) -> int:
    from evoclaw.wiring.settings import orchestrator_settings

    states = asyncio.run(_states())
    rows: list[dict[str, JSON]] = []
    for channel in orchestrator_settings(os.environ).channels:
        known = states.get(channel.name, {})
        paired = known.get("paired")
        rows.append(
            {
                "name": channel.name,
                "kind": channel.kind,
                "agent": channel.agent,
                "senders": [*channel.senders, *(paired if is_object(paired) else ())],
                **{key: text_of(known, key) for key in _TEXTS},
                **{key: known.get(key) for key in _NUMBERS},
            }
        )
    if as_json:
        print_out(rows)
        return exits.OK
    lines = [
        [
            text_of(row, "name"),
            text_of(row, "kind"),
            text_of(row, "agent"),
            _state(row),
            _traffic(row),
            clean(", ".join(str(sender) for sender in row["senders"])),
        ]
        for row in rows
    ]
    print_table(lines, "no channels are configured: see [[channels]] in evoclaw.toml")
    return exits.OK


async def _states() -> dict[str, dict[str, JSON]]:
    """By name, the state of the channels; empty if no service runs."""
    try:
        async with open_client(os.environ) as client:
            found = service_api.as_items(await client.get("/v1/channels"))
    except ServiceNotRunning:
        return {}
    return {text_of(row, "name"): row for row in found}


def _state(row: dict[str, JSON]) -> str:
    state, account, problem, fix = (
        clean(text_of(row, key)) for key in ("state", "account", "problem", "fix")
    )
    since = format_time(row.get("changed_at"))
    parts = (state, account and f"as {account}", since and f"since {since}", problem, fix)
    return " ".join(part for part in parts if part)


def _traffic(row: dict[str, JSON]) -> str:
    received, sent = format_time(row.get("last_received_at")), format_time(row.get("last_sent_at"))
    given_up = row.get("given_up")
    parts = (
        received and f"received {received}",
        sent and f"sent {sent}",
        f"{given_up} not delivered" if given_up else "",
    )
    return ", ".join(part for part in parts if part)


@channels.command("test", help="Log in at the service of a chat channel")
@click.argument("name", help="Name, as `evoclaw channels` lists it")
@json_option()
def _test(name: str, *, as_json: bool) -> int:
    from evoclaw.wiring.channels import check_channels

    ok, says = asyncio.run(check_channels(os.environ, name))[name]
    if as_json:
        print_out({"name": name, "ok": ok, "detail": says})
    elif ok:
        print_out(f"{clean(name)}: works, as {clean(says)}")
    else:
        print_err(f"{clean(name)}: {clean(says)}")
    return exits.OK if ok else exits.FAILED


@channels.command("pair", help="Show a one-time code that lets its sender use a chat channel")
@click.argument("name", help="Name, as `evoclaw channels` lists it")
@click.option("--user", default="", help="User that the sender becomes [CHANNEL:SENDER]")
@json_option()
def _pair(name: str, user: str, *, as_json: bool) -> int:
    _check_person()

    async def ask(client: ServiceClient) -> int:
        path = service_api.api_path("channel-pairings", name)
        found = service_api.as_object(await client.post(path, {"user": user}))
        if as_json:
            print_out(found)
            return exits.OK
        print_out(f"/pair {text_of(found, 'code')}")
        print_err(
            "Send this line to the bot from your own account within 10 minutes. The first account "
            f"that sends it may use {clean(name)}; undo it with "
            f"`evoclaw channels unpair {clean(name)} SENDER`."
        )
        return exits.OK

    return with_client(ask)


@channels.command("unpair", help="Remove a sender that was added with a code")
@click.argument("name", help="Name, as `evoclaw channels` lists it")
@click.argument("sender", help="Sender, as `evoclaw channels` lists it")
def _unpair(name: str, sender: str) -> int:
    _check_person()

    async def ask(client: ServiceClient) -> int:
        path = service_api.api_path("channel-pairings", name, "remove")
        await client.post(path, {"sender": sender})
        print_err(f"{clean(sender)}: may no longer use {clean(name)}")
        return exits.OK

    return with_client(ask)


@channels.command("user", help="Create a person's broker account, or give it a new password")
@click.argument("name", help="Name of the person, as in `senders` of a channel")
@click.option(
    "--home-assistant", is_flag=True, help="Let it also see the edges and press their buttons"
)
@json_option()
def _user(name: str, *, home_assistant: bool, as_json: bool) -> int:
    from evoclaw.transport.broker_accounts import BrokerRole
    from evoclaw.wiring.fleet import own_broker_accounts

    _check_person()
    role = BrokerRole.HOME_ASSISTANT if home_assistant else BrokerRole.USER
    password = own_broker_accounts(os.environ).renew_user(name, role)
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
