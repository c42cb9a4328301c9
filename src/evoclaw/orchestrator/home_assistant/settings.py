"""The settings of `[home_assistant]`."""

from __future__ import annotations

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.transport.topics import ID_RULE, is_agent_id


class HomeAssistantSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether Home Assistant sees the edges, and what it may do."""

    discovery: bool = False
    """Describe the edges to Home Assistant with retained MQTT messages; false removes them."""
    prefix: str = "homeassistant"
    """The discovery prefix of Home Assistant's MQTT integration."""
    account: str = ""
    """The broker account of Home Assistant: it may press the buttons of edges, and send messages to
    agents if the MQTT channel lists it in `senders`. Empty: Home Assistant only reads."""


def check_home_assistant(settings: HomeAssistantSettings) -> None:
    """Raise `ConfigError` for names that do not fit into a topic."""
    if not is_agent_id(settings.prefix):
        raise ConfigError(f"home_assistant.prefix: invalid prefix {settings.prefix!r}: {ID_RULE}")
    if settings.account and not is_agent_id(settings.account):
        raise ConfigError(
            f"home_assistant.account: invalid account {settings.account!r}: {ID_RULE}"
        )
