"""`evoclaw budget`: limits, spending and what is left."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

import click

from evoclaw.cli import exits
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.terminal_text import clean
from evoclaw.core.ledgers import Account
from evoclaw.core.messages import JSON
from evoclaw.governance.budget.wordings import format_amount, in_display_units


@click.command(cls=CliCommand)
@click.argument(
    "action", type=click.Choice(["show"]), required=False, expose_value=False, help="The default"
)
@click.option("--all", "show_all", is_flag=True, help="Include runs that have ended")
@json_option()
def budget(*, show_all: bool, as_json: bool) -> int:
    """Show every account; with `--all` also those of runs that have ended."""
    accounts = asyncio.run(_accounts())
    if not show_all:
        accounts = [account for account in accounts if not account.closed]
    now = time.time()
    if as_json:
        print_out([_facts(account, now) for account in accounts])
        return exits.OK
    for account in accounts:
        print_out(clean(account.name))
        for kind in _kinds(account):
            print_out(f"  {_line(account, kind, now)}")
    if not accounts:
        print_out("no open accounts; `evoclaw budget --all` includes those of ended runs")
    return exits.OK


async def _accounts() -> Sequence[Account]:
    from evoclaw.wiring.budget import open_ledger

    async with open_ledger(os.environ) as ledger:
        return await ledger.accounts()


def _kinds(account: Account) -> list[str]:
    return sorted({*account.limits, *account.spent, *account.held})


def _line(account: Account, kind: str, now: float) -> str:
    spent, held = account.spent.get(kind, 0), account.held.get(kind, 0)
    text = f"{clean(kind):20} {format_amount(kind, spent)} spent"
    text += f", {format_amount(kind, held)} reserved" if held else ""
    limit, left = account.limits.get(kind), account.remaining(kind, now)
    if limit is None or left is None:
        return text
    over = f" within {limit.per:,.0f} s" if limit.per else ""
    return f"{text}, {format_amount(kind, left)} left of {format_amount(kind, limit.most)}{over}"


def _facts(account: Account, now: float) -> dict[str, JSON]:
    kinds: dict[str, JSON] = {}
    for kind in _kinds(account):
        limit, left = account.limits.get(kind), account.remaining(kind, now)
        kinds[kind] = {
            "spent": in_display_units(kind, account.spent.get(kind, 0)),
            "reserved": in_display_units(kind, account.held.get(kind, 0)),
            "limit": None if limit is None else in_display_units(kind, limit.most),
            "per_seconds": None if limit is None or not limit.per else limit.per,
            "left": None if left is None else in_display_units(kind, left),
        }
    return {"account": account.name, "closed": account.closed, "kinds": kinds}
