"""`evoclaw budget`: what may be spent, what was, and what is left."""

from __future__ import annotations

import asyncio
import os
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from evoclaw.cli import exits
from evoclaw.cli.clean import clean
from evoclaw.cli.fleet import show
from evoclaw.core.ledgers import Account, Ledger
from evoclaw.core.messages import JSON
from evoclaw.governance.budget.wordings import shown, units


class Books(Protocol):
    """Who can open the ledger."""

    def open_ledger(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[Ledger]:
        """The ledger of this machine."""
        ...


def budget(options: Namespace, wiring: Books) -> int:
    """Show every account; with `--all` also those of runs that have ended."""
    accounts = asyncio.run(_accounts(wiring))
    if not options.all:
        accounts = [account for account in accounts if not account.closed]
    now = time.time()
    if options.json:
        show([_facts(account, now) for account in accounts])
        return exits.OK
    for account in accounts:
        show(clean(account.name))
        for kind in _kinds(account):
            show(f"  {_line(account, kind, now)}")
    if not accounts:
        show("nothing is counted at the moment; `evoclaw budget --all` shows what has ended")
    return exits.OK


async def _accounts(wiring: Books) -> Sequence[Account]:
    async with wiring.open_ledger(os.environ) as ledger:
        return await ledger.accounts()


def _kinds(account: Account) -> list[str]:
    return sorted({*account.limits, *account.spent, *account.held})


def _line(account: Account, kind: str, now: float) -> str:
    spent, held = account.spent.get(kind, 0), account.held.get(kind, 0)
    said = f"{clean(kind):20} {shown(kind, spent)} spent"
    said += f", {shown(kind, held)} reserved" if held else ""
    limit, left = account.limits.get(kind), account.left(kind, now)
    if limit is None or left is None:
        return said
    over = f" within {limit.per:,.0f} s" if limit.per else ""
    return f"{said}, {shown(kind, left)} left of {shown(kind, limit.most)}{over}"


def _facts(account: Account, now: float) -> dict[str, JSON]:
    kinds: dict[str, JSON] = {}
    for kind in _kinds(account):
        limit, left = account.limits.get(kind), account.left(kind, now)
        kinds[kind] = {
            "spent": units(kind, account.spent.get(kind, 0)),
            "reserved": units(kind, account.held.get(kind, 0)),
            "limit": None if limit is None else units(kind, limit.most),
            "per_seconds": None if limit is None or not limit.per else limit.per,
            "left": None if left is None else units(kind, left),
        }
    return {"account": account.name, "closed": account.closed, "kinds": kinds}
