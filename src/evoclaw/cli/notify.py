"""`evoclaw notify`: list the notifiers of the running service, and send a test message."""

from __future__ import annotations

import click

from evoclaw.cli import exits, service_api
from evoclaw.cli.client import ServiceClient, with_client
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import clean, print_table, text_of
from evoclaw.core.messages import JSON, is_array


@click.group(cls=CommandGroup, default="list")
def notify() -> None:
    """List notifiers, and send a test message."""


@notify.command("list", help="List the notifiers of the service (the default)")
@json_option()
def _list(*, as_json: bool) -> int:
    async def show(client: ServiceClient) -> int:
        found = service_api.as_items(await client.get("/v1/notify"))
        if as_json:
            print_out(found)
            return exits.OK
        rows = [
            [
                text_of(row, "name"),
                text_of(row, "kind"),
                _joined(row.get("on")),
                "answers" if row.get("answers") else "",
                _last(row),
            ]
            for row in found
        ]
        print_table(rows, "no notifiers are configured: see [[notify]] in evoclaw.toml")
        return exits.OK

    return with_client(show)


@notify.command("test", help="Send a test message with a notifier")
@click.argument("name", help="Name, as `evoclaw notify` lists it")
@json_option()
def _test(name: str, *, as_json: bool) -> int:
    async def send(client: ServiceClient) -> int:
        path = service_api.api_path("notify", name, "test")
        found = service_api.as_object(await client.post(path))
        sent = found.get("ok") is True
        if as_json:
            print_out(found)
        elif sent:
            print_out(f"{clean(name)}: {clean(text_of(found, 'detail'))}")
        else:
            print_err(f"{clean(name)}: not sent: {clean(text_of(found, 'detail'))}")
        return exits.OK if sent else exits.FAILED

    return with_client(send)


def _joined(values: JSON) -> str:
    return ", ".join(str(value) for value in values) if is_array(values) else ""


def _last(row: dict[str, JSON]) -> str:
    state, problem = text_of(row, "last_state"), text_of(row, "last_problem")
    if not state:
        return "nothing sent yet"
    return f"last message {state}" + (f": {problem}" if problem else "")
