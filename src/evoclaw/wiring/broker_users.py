"""The broker accounts of people who use an MQTT channel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from evoclaw.transport.broker_accounts import BrokerAccounts


def add_broker_user(name: str, env: Mapping[str, str]) -> str:
    """Create the account of a person at our broker, or renew its password; returns the password."""
    from evoclaw.transport.broker_accounts import BrokerRole

    accounts = _accounts(env)
    found = [account for account in accounts.all() if account.name == name]
    if any(account.role is not BrokerRole.USER for account in found):
        raise ConfigError(f"{name!r} is the account of an edge or orchestrator; use another name")
    return accounts.renew(name, BrokerRole.USER)


def remove_broker_user(name: str, env: Mapping[str, str]) -> bool:
    """Remove the account of a person; False if there is none."""
    from evoclaw.transport.broker_accounts import BrokerRole

    accounts = _accounts(env)
    found = [account for account in accounts.all() if account.name == name]
    if not any(account.role is BrokerRole.USER for account in found):
        return False
    accounts.remove(name)
    return True


def _accounts(env: Mapping[str, str]) -> BrokerAccounts:
    from evoclaw.config.paths import default_data_folder
    from evoclaw.transport.broker_accounts import BrokerAccounts
    from evoclaw.wiring.fleet import has_own_broker

    home = default_data_folder(env)
    if not has_own_broker(home):
        raise ConfigError(
            "no broker of `evoclaw up` runs on this machine: start it, or create the account "
            "at the broker that you use"
        )
    return BrokerAccounts(home / "broker")
