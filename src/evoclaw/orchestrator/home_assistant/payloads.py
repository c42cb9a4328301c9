"""The messages for Home Assistant: descriptions of devices, and their states.

Of an edge, they hold its id, numbers, and words of a closed set, never a text that it wrote: Home
Assistant shows the names of entities to language models.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec

from evoclaw.core.messages import JSON, is_object
from evoclaw.core.version import VERSION
from evoclaw.transport.mailboxes import MailboxState
from evoclaw.transport.topics import (
    MAX_CACHED_TOPICS,
    HomeAssistantTopic,
    Mailbox,
    box_topic,
    home_assistant_topic,
)

EXPIRE_AFTER_S = 180
"""Home Assistant shows an edge as unavailable when no orchestrator published for so long."""
PING, STOP = "ping", "stop"
"""The payloads of the buttons."""
EVENT_TYPES = ("success", "error", "pong", "no_answer")
"""How a call ended, and whether an edge answered a ping."""
_ORIGIN: Final[JSON] = {"name": "EvoClaw", "sw_version": VERSION}
_FIGURES: tuple[tuple[str, dict[str, JSON]], ...] = (
    ("cpu_percent", {"name": "CPU", "unit_of_measurement": "%"}),
    ("memory_percent", {"name": "Memory", "unit_of_measurement": "%"}),
    (
        "temperature_c",
        {"name": "Temperature", "unit_of_measurement": "°C", "device_class": "temperature"},
    ),
)


def edge_device(edge: str) -> str:
    """The id of an edge as a device of Home Assistant."""
    return f"evoclaw-edge-{edge}"


def agent_device(agent: str) -> str:
    """The id of an agent as a device of Home Assistant."""
    return f"evoclaw-agent-{agent}"


@lru_cache(maxsize=MAX_CACHED_TOPICS)
def describe_edge(edge: str, figures: tuple[str, ...], account: str) -> bytes:
    """Describe an edge.

    Args:
        edge: Its id.
        figures: The names of the figures that it reports; the others get no sensor.
        account: The account that may press its buttons; empty: it has none.
    """
    state = home_assistant_topic(edge, HomeAssistantTopic.STATE)
    result = home_assistant_topic(edge, HomeAssistantTopic.RESULT)
    components: dict[str, dict[str, JSON]] = {
        "online": _flag("Online", "online", state) | {"device_class": "connectivity"},
        "stopped": _flag("Stopped", "stopped", state) | {"device_class": "problem"},
        "last_call": {
            "platform": "sensor",
            "name": "Last call",
            "device_class": "timestamp",
            "state_topic": result,
            "value_template": "{{ value_json.at }}",
        },
        "result": {
            "platform": "event",
            "name": "Result",
            "event_types": list(EVENT_TYPES),
            "state_topic": result,
        },
    }
    for name, about in _FIGURES:
        if name in figures:
            components[name] = {
                "platform": "sensor",
                "state_class": "measurement",
                "entity_category": "diagnostic",
                "expire_after": EXPIRE_AFTER_S,
                "state_topic": state,
                "value_template": f"{{{{ value_json.{name} }}}}",
                **about,
            }
    if account:
        command = home_assistant_topic(edge, HomeAssistantTopic.COMMAND, account)
        for press, name in ((PING, "Ping"), (STOP, "Stop")):
            components[press] = {
                "platform": "button",
                "name": name,
                "command_topic": command,
                "payload_press": press,
            }
    return _device(edge_device(edge), edge, "Edge", components)


@lru_cache(maxsize=MAX_CACHED_TOPICS)
def describe_agent(agent: str, account: str) -> bytes:
    """Describe an agent: a target for messages, and an event for each of its replies."""
    # A reply that no run wrote has no `run_id`, and Jinja cannot write an undefined value as JSON.
    run_id = "value_json.run_id | default('')"
    reply = f"{{'event_type': value_json.state, 'text': value_json.text, 'run_id': {run_id}}}"
    components: dict[str, dict[str, JSON]] = {
        "message": {
            "platform": "notify",
            "name": "Message",
            "command_topic": box_topic(agent, Mailbox.INBOX, account),
            "command_template": "{{ {'message': value} | tojson }}",
        },
        "reply": {
            "platform": "event",
            "name": "Reply",
            "event_types": [str(state) for state in MailboxState],
            "state_topic": box_topic(agent, Mailbox.OUTBOX, account),
            "value_template": f"{{{{ {reply} | tojson }}}}",
        },
    }
    return _device(agent_device(agent), agent, "Agent", components)


def encode_state(figures: dict[str, float], *, online: bool, stopped: bool) -> bytes:
    """The state of an edge; an offline edge has no figures."""
    shown = figures if online else dict[str, float]()
    states: dict[str, JSON] = {"online": online, "stopped": stopped}
    return msgspec.json.encode(states | {name: shown.get(name) for name, _ in _FIGURES})


def encode_result(event_type: str, at: float) -> bytes:
    """An event of an edge: only when, and of which type."""
    stamp = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return msgspec.json.encode({"event_type": event_type, "at": stamp})


def read_figures(metrics: JSON) -> dict[str, float]:
    """The figures in an edge's answer to `get_metrics`; others than numbers are left out."""
    machine = metrics.get("machine") if is_object(metrics) else None
    if not is_object(machine):
        return {}
    numbers = {
        name: float(value)
        for name, value in machine.items()
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    }
    figures = {name: numbers[name] for name in ("cpu_percent", "temperature_c") if name in numbers}
    total, available = (numbers.get(f"memory_{name}_mb", 0.0) for name in ("total", "available"))
    if total > 0 and 0 <= available <= total:
        figures["memory_percent"] = round(100 * (1 - available / total), 1)
    return figures


def _flag(name: str, key: str, state: str) -> dict[str, JSON]:
    return {
        "platform": "binary_sensor",
        "name": name,
        "expire_after": EXPIRE_AFTER_S,
        "state_topic": state,
        "value_template": f"{{{{ 'ON' if value_json.{key} else 'OFF' }}}}",
    }


def _device(device: str, name: str, model: str, components: dict[str, dict[str, JSON]]) -> bytes:
    """The current form: one message for a device and all its entities."""
    described: JSON = {
        "device": {
            "identifiers": [device],
            "name": name,
            "manufacturer": "EvoClaw",
            "model": model,
        },
        "origin": _ORIGIN,
        "components": {
            key: component | {"unique_id": f"{device}-{key}"}
            for key, component in components.items()
        },
        "qos": 1,
    }
    return msgspec.json.encode(described)
