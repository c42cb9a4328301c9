"""What `scalespeed --statements` counts is named by its table, and attributed to its file."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.scale.scalespeed import loads, parsed
from bench.scale.speed_row import per_run
from bench.scale.statements import kind_of, read_trace

HOME = Path("/home/ann/one")
TRACE = """\
10 pwrite64(12</home/ann/one/evoclaw.db-wal>, ""..., 24, 0) = 24
10 pwrite64(12</home/ann/one/evoclaw.db-wal>, ""..., 4096, 24 <unfinished ...>
11 write(3<socket:[77]>, ""..., 5) = 5
11 fdatasync(12</home/ann/one/evoclaw.db-wal> <unfinished ...>
10 <... pwrite64 resumed>) = 4096
11 <... fdatasync resumed>) = 0
10 write(9</home/ann/one/audit/log>, ""..., 100) = 100
10 write(9</home/bob/other>, ""..., 100) = 100
10 +++ exited with 0 +++
"""


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("COMMIT", "COMMIT"),
        ("SAVEPOINT s1", "SAVEPOINT"),
        ("SELECT pg_advisory_xact_lock($1)", "SELECT advisory lock"),
        (
            "SELECT a\n FROM runs -- FROM no_table\n WHERE id = $1 FOR UPDATE SKIP LOCKED",
            "SELECT runs",
        ),
        ("SELECT extract($1 FROM clock_timestamp()) FROM meta", "SELECT meta"),
        (
            'INSERT INTO "evoclaw"."records" VALUES ($1) ON CONFLICT DO UPDATE SET a = 1',
            "INSERT records",
        ),
        ("UPDATE runs SET a = 1", "UPDATE runs"),
        (
            "WITH f AS (UPDATE runs SET a = 1 RETURNING id) INSERT INTO records SELECT id FROM f",
            "UPDATE runs + INSERT records",
        ),
    ],
)
def test_a_statement_is_named_by_its_verb_and_table(query: str, kind: str) -> None:
    assert kind_of(query) == kind


def test_writes_and_syncs_are_attributed_to_files_of_the_orchestrator() -> None:
    assert read_trace(TRACE, HOME) == {
        "evoclaw.db-wal": {"writes": 2, "bytes": 4120, "syncs": 1},
        "audit/log": {"writes": 1, "bytes": 100},
    }


def test_round_trips_are_unknown_without_the_proxy_and_not_zero() -> None:
    counts = {"commits": 30, "written_commits": 9, "wal_bytes": 30_000, "page_image_bytes": 0}
    direct = per_run({**counts, "round_trips": None, "by_connection": {}}, 3)
    assert (direct["round_trips_per_run"], direct["commits_per_run"]) == (None, 10)
    assert (direct["written_commits_per_run"], direct["wal_kb_per_run"]) == (3, 10)


def test_a_run_alone_is_measured_once_and_short_replies_without_a_delay() -> None:
    options = parsed(["--orchestrators", "2", "1", "--at-once", "1", "24", "--runs", "100"])
    assert [(load.replies, load.runs, load.at_once) for load in loads(options, 1)] == [
        ("streamed", 20, 1),
        ("streamed", 100, 24),
    ]
    assert [load.replies for load in loads(options, 2, near=True)] == ["streamed", "short"]


@pytest.mark.parametrize(
    "wrong", [["--rtt", "-1"], ["--orchestrators", "5"], ["--at-once", "0"], ["--runs", "0"]]
)
def test_a_command_line_that_cannot_be_measured_is_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(wrong)
