from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.transport.topics import TopicKind, every, is_agent_id, read_topic, topic


@pytest.mark.parametrize("kind", TopicKind)
def test_an_agent_topic_round_trips(kind: TopicKind) -> None:
    name = topic("alex-eye", kind)
    assert name == f"evoclaw/agents/alex-eye/{kind}"
    assert read_topic(name) == ("alex-eye", kind)


def test_a_subscription_to_all_agents_uses_a_wildcard_for_the_id() -> None:
    assert every(TopicKind.REPORTS) == "evoclaw/agents/+/reports"
    assert read_topic(every(TopicKind.REPORTS)) is None


@pytest.mark.parametrize(
    "hostile",
    ["", "+", "#", "a/b", "../x", "a b", "-a", "_a", "a" * 65, "é", "a\0", "a\n", "$SYS", "a.b"],
)
def test_invalid_agent_ids_are_rejected(hostile: str) -> None:
    assert not is_agent_id(hostile)
    assert read_topic(f"evoclaw/agents/{hostile}/reports") is None
    with pytest.raises(ValueError, match="not an agent id"):
        topic(hostile, TopicKind.COMMANDS)


@given(st.text())
def test_any_topic_is_parsed_or_ignored(name: str) -> None:
    found = read_topic(name)
    assert found is None or topic(*found) == name
