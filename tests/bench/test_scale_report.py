"""The page about several orchestrators matches the stored results."""

from __future__ import annotations

import json
from typing import Any

from bench.scale.report import PAGE, RESULTS, page
from bench.scale.scalespeed import ceilings, efficiency, scaling
from bench.scale.speed_row import row

NEAR: dict[str, Any] = {"rtt_ms": 0.0, "fsync": "off", "replies": "short", "at_once": 24}
DELAYED: dict[str, Any] = {**NEAR, "rtt_ms": 10.0, "replies": "streamed"}
COUNTED = {
    "latency_s": 0.12,
    "round_trips_per_run": 7.5,
    "commits_per_run": 4,
    "written_commits_per_run": 3,
    "wal_kb_per_run": 11.25,
}


def test_the_scale_page_matches_the_stored_results() -> None:
    assert PAGE.read_text() == page(json.loads(RESULTS.read_text()))


def test_missing_measurements_are_left_out_of_the_page() -> None:
    assert "## Throughput" not in page({})
    assert "takeovers" not in page({})


def test_the_page_shows_the_verdict_of_the_foreign_checker_or_why_there_is_none() -> None:
    results = json.loads(RESULTS.read_text())
    verdict = {"lists": 22, "operations": 1097, "illegal": ["edge pi"], "undecided": []}
    results["nats"]["porcupine"] = verdict
    results["mosquitto"]["porcupine"] = {"reason": "no Go"}
    cells = "1,097 operations on 22 lists, 1 not linearizable | no: no Go"
    assert f"| judged by porcupine | {cells} |" in page(results).splitlines()


def test_a_row_names_the_saturated_process_and_the_cost_of_a_turn() -> None:
    cpu = {"one": 9.5, "postgres": 4.0, "model": 1.0, "clients": 1.0}
    found = row(["one"], runs=100, seconds=10.0, cpu=cpu, busy=16.0)
    assert found["full"] == ["one"]
    assert (found["turns_per_s"], found["ms_per_turn"]["orchestrators"]) == (20.0, 47.5)
    assert found["cores_of_others"] == 0.05


def test_efficiency_per_orchestrator_is_relative_to_a_single_one() -> None:
    cpu = {"one": 5.0, "two": 5.0, "postgres": 1.0}
    alone = {**NEAR, **row(["one"], 100, 10.0, {"one": 5.0}, 10.0)}
    both = {**NEAR, **row(["one", "two"], 150, 10.0, cpu, 12.0)}
    assert efficiency([alone, both]) == {"short": {"1": 1.0, "2": 0.75}}
    assert ceilings([alone, both]) == {"short": {"turns_per_s": 20.0, "full": []}}


def test_rows_with_a_delay_do_not_change_the_ceiling_but_show_how_orchestrators_add_up() -> None:
    cpu = {"one": 5.0, "two": 5.0}
    alone = {**DELAYED, **row(["one"], 100, 10.0, {"one": 5.0}, 10.0)}
    both = {**DELAYED, **row(["one", "two"], 150, 10.0, cpu, 12.0)}
    on_disk = {**both, "fsync": "on"}
    assert ceilings([alone, both]) == {}
    assert scaling([alone, both, on_disk]) == [{**DELAYED, "orchestrators": 2, "ratio": 1.5}]


def test_the_page_shows_the_delay_the_peers_and_why_a_peer_is_missing() -> None:
    delayed = {**DELAYED, **row(["one"], 100, 10.0, {"one": 5.0, "postgres": 1.0}, 10.0), **COUNTED}
    shared = {"rtt_ms": 2.0, "fsync": "on"}
    speed: dict[str, Any] = {
        "rows": [delayed],
        "peers": [
            {**shared, "name": "dbos", "version": "1.0", "processes": 2, "turns_per_s": 64.0},
            {**shared, "name": "other", "processes": 0, "turns_per_s": None, "reason": "exit 1"},
        ],
        "ceiling": {},
        "efficiency": {},
        "measured": "today",
    }
    lines = page({"speed": speed}).splitlines()
    assert "| 10 | off | 1 | 24 | 20 | 0.120 | 7.5 | 4 | 3 | 11.25 | 25 | 5 |" in lines
    assert "| dbos 1.0 | 2 | on | 2 | 64 | – |" in lines
    assert "| other | 2 | on | – | not measured: exit 1 | – |" in lines
