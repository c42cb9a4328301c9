"""Accounts of people at the broker of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from evoclaw.transport.broker_accounts import BrokerAccounts


def add_user(name: str, env: Mapping[str, str]) -> str:
    """Make a person's account at our broker, or give it another password: the password."""
    from evoclaw.transport.broker_accounts import BrokerRole

    accounts = _accounts(env)
    others = [one for one in accounts.all() if one.name == name and one.role is not BrokerRole.USER]
    if others:
        raise ConfigError(f"{name!r} is the account of another process; choose another name")
    return accounts.renew(name, BrokerRole.USER)


def remove_user(name: str, env: Mapping[str, str]) -> bool:
    """Take a person's account away; False if there is none."""
    from evoclaw.transport.broker_accounts import BrokerRole

    accounts = _accounts(env)
    if not any(one.name == name and one.role is BrokerRole.USER for one in accounts.all()):
        return False
    accounts.remove(name)
    return True


def _accounts(env: Mapping[str, str]) -> BrokerAccounts:
    from evoclaw.config.places import default_data_folder
    from evoclaw.transport.broker_accounts import BrokerAccounts
    from evoclaw.wiring.fleet import is_ours

    home = default_data_folder(env)
    if not is_ours(home):
        raise ConfigError(
            "accounts are for the broker of `evoclaw up`; start it, or make the account at the "
            "broker you use"
        )
    return BrokerAccounts(home / "broker")
