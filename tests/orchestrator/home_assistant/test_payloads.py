"""The messages for Home Assistant have the shape that its MQTT integration documents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.orchestrator.home_assistant.payloads import (
    describe_agent,
    describe_edge,
    encode_result,
    encode_state,
    read_figures,
)
from evoclaw.orchestrator.home_assistant.settings import (
    HomeAssistantSettings,
    check_home_assistant,
)
from evoclaw.transport.broker_accounts import BrokerAccount, BrokerRole, HashedPasswords
from evoclaw.transport.mailboxes import MailboxState
from evoclaw.transport.topics import read_button_topic

FIGURES = ("cpu_percent", "memory_percent", "temperature_c")
READS, WRITES = {"state_topic"}, {"command_topic"}
COMMON = {"platform", "name", "unique_id", "entity_category", "device_class"}
SENSOR = {"expire_after", "state_class", "unit_of_measurement", "value_template"}
REQUIRED = {
    "binary_sensor": READS,
    "sensor": READS,
    "event": READS | {"event_types"},
    "button": WRITES,
    "notify": WRITES,
}
OPTIONAL = {
    "binary_sensor": {"expire_after", "value_template"},
    "sensor": SENSOR,
    "event": {"value_template"},
    "button": {"payload_press"},
    "notify": {"command_template"},
}
"""The keys that Home Assistant 2026.11 requires and knows, of those that are used."""
DEVICE = {"identifiers", "name", "manufacturer", "model"}


def components_of(payload: bytes) -> dict[str, dict[str, JSON]]:
    """The entities in a description, after a check of its shape."""
    described = json.loads(payload)
    assert set(described) == {"device", "origin", "components", "qos"}
    assert set(described["device"]) == DEVICE
    assert described["device"]["identifiers"]
    assert set(described["origin"]) == {"name", "sw_version"}
    components: dict[str, dict[str, JSON]] = described["components"]
    for key, component in components.items():
        required = REQUIRED[component["platform"]] | {"platform", "unique_id"}
        assert required <= set(component), key
        assert set(component) <= required | COMMON | OPTIONAL[component["platform"]], key
    ids = [component["unique_id"] for component in components.values()]
    assert len(set(ids)) == len(ids)
    return components


def test_an_edge_has_only_the_sensors_that_it_reports() -> None:
    entities = components_of(describe_edge("garage", FIGURES, "assist"))
    assert set(entities) == {"online", "stopped", "last_call", "result", "ping", "stop", *FIGURES}
    assert entities["online"]["device_class"] == "connectivity"
    assert entities["last_call"]["device_class"] == "timestamp"
    without = components_of(describe_edge("garage", (), "assist"))
    assert set(entities) - set(without) == set(FIGURES)


def test_without_an_account_an_edge_has_no_buttons() -> None:
    entities = components_of(describe_edge("garage", (), ""))
    assert not any("command_topic" in entity for entity in entities.values())


def test_an_agent_takes_messages_and_has_an_event_for_each_kind_of_reply() -> None:
    entities = components_of(describe_agent("evoclaw", "assist"))
    assert entities["message"]["command_topic"] == "evoclaw/agents/evoclaw/inbox/assist"
    assert entities["reply"]["state_topic"] == "evoclaw/agents/evoclaw/outbox/assist"
    assert entities["reply"]["event_types"] == [str(state) for state in MailboxState]


def test_an_offline_edge_has_no_figures() -> None:
    shown = json.loads(encode_state({"cpu_percent": 4.0}, online=True, stopped=False))
    assert (shown["online"], shown["cpu_percent"], shown["temperature_c"]) == (True, 4.0, None)
    hidden = json.loads(encode_state({"cpu_percent": 4.0}, online=False, stopped=True))
    assert (hidden["online"], hidden["stopped"], hidden["cpu_percent"]) == (False, True, None)


def test_a_result_has_a_time_with_its_zone() -> None:
    result = json.loads(encode_result("error", 0.0))
    assert result == {"event_type": "error", "at": "1970-01-01T00:00:00.000+00:00"}


def test_memory_is_shown_in_percent() -> None:
    machine = {"memory_total_mb": 1000, "memory_available_mb": 250, "cpu_percent": 1.5}
    assert read_figures({"machine": machine}) == {"memory_percent": 75.0, "cpu_percent": 1.5}


TEXTS = st.text(max_size=20) | st.floats() | st.booleans() | st.none()


@given(
    st.dictionaries(
        st.sampled_from(["cpu_percent", "temperature_c", "memory_total_mb", "memory_available_mb"]),
        TEXTS,
    )
)
def test_an_edge_cannot_put_a_text_into_its_figures(machine: dict[str, JSON]) -> None:
    figures = read_figures({"machine": machine})
    assert all(type(value) is float for value in figures.values())
    json.loads(encode_state(figures, online=True, stopped=False), parse_constant=pytest.fail)


@pytest.mark.parametrize("answer", [None, [], "text", {}, {"machine": []}, {"machine": None}])
def test_an_answer_without_figures_has_none(answer: JSON) -> None:
    assert read_figures(answer) == {}


@pytest.mark.parametrize(
    "settings",
    [
        HomeAssistantSettings(prefix="a/b"),
        HomeAssistantSettings(prefix=""),
        HomeAssistantSettings(prefix="#"),
        HomeAssistantSettings(account="+"),
    ],
)
def test_a_name_that_does_not_fit_into_a_topic_is_refused(settings: HomeAssistantSettings) -> None:
    with pytest.raises(ConfigError, match="home_assistant"):
        check_home_assistant(settings)


@pytest.mark.parametrize(
    "topic",
    ["evoclaw/ha/+/command/a", "evoclaw/ha/x/state/a", "evoclaw/ha/x/command", "ha/x/command/a"],
)
def test_other_topics_are_no_buttons(topic: str) -> None:
    assert read_button_topic(topic) is None
    assert read_button_topic("evoclaw/ha/x/command/a") == ("x", "a")


def test_only_the_account_of_home_assistant_sees_edges_and_presses_buttons() -> None:
    def rights(role: BrokerRole) -> set[str]:
        found = BrokerAccount("assist", role, HashedPasswords("", "")).rights
        return {*found.publish, *found.subscribe}

    own = rights(BrokerRole.HOME_ASSISTANT) - rights(BrokerRole.USER)
    assert "evoclaw/ha/+/command/assist" in own
    assert "evoclaw/ha/+/state" in own
    for role in (BrokerRole.USER, BrokerRole.AGENT):
        assert not [topic for topic in rights(role) if "evoclaw/ha" in topic]
    assert not [topic for topic in rights(BrokerRole.HOME_ASSISTANT) if "commands" in topic]
