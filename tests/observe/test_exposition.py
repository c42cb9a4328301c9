"""What Prometheus reads: valid, bounded, whatever the edges say of themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from evoclaw.observe import exposition
from evoclaw.observe.counters import EdgeGauges, Gauges
from evoclaw.observe.metrics import Metrics

LAMP = EdgeGauges("lamp", True, 2, 3, 12.5, 64e6, 99.0, 1_700_000_000.5)


def told(*edges: EdgeGauges) -> dict[str, float]:
    return samples(Metrics(Gauges(edges=lambda: edges)))


def samples(metrics: Metrics) -> dict[str, float]:
    """Each sample once: twice the same would be refused by whoever reads it."""
    found: dict[str, float] = {}
    for family in families(metrics.render().decode()):
        assert family.documentation, f"{family.name} says nothing of itself"
        assert family.type != "unknown", family.name
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            key = f"{sample.name}{{{labels}}}"
            assert key not in found, f"{key} is told twice"
            found[key] = sample.value
    return found


def test_an_edge_is_shown_by_its_last_heartbeat() -> None:
    found = told(LAMP, EdgeGauges("gone", last_seen=5.0))
    assert found["evoclaw_edge_online{edge=lamp}"] == 1
    assert found["evoclaw_edge_in_flight{edge=lamp}"] == 2
    assert found["evoclaw_edge_queued{edge=lamp}"] == 3
    assert found["evoclaw_edge_cpu_percent{edge=lamp}"] == 12.5
    assert found["evoclaw_edge_memory_bytes{edge=lamp}"] == 64e6
    assert found["evoclaw_edge_uptime_seconds{edge=lamp}"] == 99
    assert found["evoclaw_edge_last_seen_timestamp_seconds{edge=lamp}"] == 1_700_000_000.5
    assert found["evoclaw_edge_online{edge=gone}"] == 0
    assert found["evoclaw_edges_known{}"] == 2


def test_edges_beyond_the_limit_are_added_up_as_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_EDGES", 2)
    edges: list[EdgeGauges] = [EdgeGauges(f"edge-{one}", True, 1, one) for one in range(5)]
    edges.append(EdgeGauges("away"))
    metrics = Metrics(Gauges(edges=lambda: edges))
    found = samples(metrics)
    names = sorted(key for key in found if key.startswith("evoclaw_edge_online{"))
    assert names == [
        "evoclaw_edge_online{edge=edge-0}",
        "evoclaw_edge_online{edge=edge-1}",
        "evoclaw_edge_online{edge=other}",
    ]
    assert found["evoclaw_edge_online{edge=other}"] == 3
    assert found["evoclaw_edge_queued{edge=other}"] == 2 + 3 + 4
    assert "evoclaw_edge_last_seen_timestamp_seconds{edge=other}" not in found
    edges[0] = EdgeGauges("edge-0")
    edges.insert(0, EdgeGauges("a-new-one", True))
    assert "evoclaw_edge_online{edge=a-new-one}" not in samples(metrics), "who is told apart stays"


@pytest.mark.parametrize("name", ["other", 'a"} 1\nevil 2', "\\", ""])
def test_any_edge_name_gives_valid_text(name: str) -> None:
    found = told(LAMP, EdgeGauges(name, True))
    assert sum(key.startswith("evoclaw_edge_online{") for key in found) == 2


def test_a_thousand_edges_take_bounded_space() -> None:
    edges: Sequence[EdgeGauges] = [EdgeGauges(f"edge-{one}", True, 1) for one in range(1_000)]
    metrics = Metrics(Gauges(edges=lambda: edges))
    found = samples(metrics)
    apart = exposition.MAX_EDGES
    assert found["evoclaw_edge_in_flight{edge=other}"] == 1_000 - apart
    assert sum(key.startswith("evoclaw_edge_") for key in found) == 5 * (apart + 1) + 2 * apart


def test_ready_parts_and_waiting_counts_are_shown() -> None:
    gauges = Gauges(
        approvals_waiting=lambda: 2,
        approval_wait=lambda: 90.0,
        disk_free=lambda: 5.0,
        ready=lambda: {"store": True, "broker": False},
    )
    found = samples(Metrics(gauges))
    assert found["evoclaw_part_ready{part=store}"] == 1
    assert found["evoclaw_part_ready{part=broker}"] == 0
    assert found["evoclaw_approval_wait_seconds{}"] == 90
    assert found["evoclaw_disk_free_bytes{}"] == 5


def test_an_unknown_http_method_is_counted_as_other() -> None:
    metrics = Metrics()
    for number in range(50):
        metrics.http(f"X{number}", "none", 405, 0.1)
    found = samples(metrics)
    assert found["evoclaw_http_requests_total{method=other,route=none,status=405}"] == 50
