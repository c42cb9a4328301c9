"""Measure EvoClaw, the floor and the peers, round by round."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from bench.suite.rows import WITHOUT_PEERS, Row
from bench.suite.subjects import BENCH, LOOPS, SDKS, CannotMeasure, Subject, ours, peer

ROUNDS = 3
SLOW_ROW, MIN_TURNS_PER_S = "concurrent_runs", 1_000
"""A row that takes about 15 seconds; a subject below this rate is measured in one round only."""
ROUNDS_OF_KIND = {"memory": 1, "schema": 2, "stored": 2}
"""Fewer rounds for kinds with little variance."""


class Samples:
    """The medians of the rounds by row and subject, and the problems."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.problems: dict[str, str] = {}

    def take(self, subject: Subject, kind: str, *arguments: str) -> None:
        """Measure a subject once; a kind that failed is not measured again."""
        what = f"{subject.name} ({kind})"
        if what in self.problems:
            return
        arguments = arguments or (kind,)
        print(f"  {subject.name} {arguments[0]}", file=sys.stderr, flush=True)
        try:
            for row, values in json.loads(subject.measure(*arguments)).items():
                self.values[row, subject.name].append(median(values))
        except (CannotMeasure, ValueError) as error:
            self.problems[what] = str(error)

    def value(self, row: str, *names: str) -> float | None:
        """The median of a subject's rounds; None if it was not measured."""
        values = [value for name in names for value in self.values[row, name]]
        return float(f"{median(values):.4g}") if values else None


def make_peers(samples: Samples, wanted: Sequence[Row]) -> dict[str, Subject]:
    """Create the environments of the peers in the wanted rows."""
    packages = {package for row in wanted for package in row.peers}
    found: dict[str, Subject] = {}
    for package in (name for name in (*LOOPS, *SDKS.values()) if name in packages):
        try:
            found[package] = peer(package)
        except CannotMeasure as error:
            samples.problems[package] = f"not installed: {error}"
    return found


def measure(
    samples: Samples, wanted: Sequence[Row], peers: dict[str, Subject], rounds: int
) -> None:
    """Measure round by round, so that a moment of high load affects all subjects."""
    kinds = {row.kind for row in wanted}
    loops = [subject for name, subject in peers.items() if name in LOOPS]
    if "import" in kinds:  # a warm-up, so that no round compiles or reads from a cold disk
        for subject in (ours("floor"), ours("ours"), *loops):
            Samples().take(subject, "import")
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for kind in ("import", "memory", "schema", "stored"):
            if kind in kinds and number < ROUNDS_OF_KIND.get(kind, rounds):
                _simple_round(samples, kind, wanted, loops)
        _loop_round(samples, [row.name for row in wanted if row.kind == "loop"], loops)
        _stream_round(samples, [row.name for row in wanted], peers)


def _simple_round(
    samples: Samples, kind: str, wanted: Sequence[Row], peers: Sequence[Subject]
) -> None:
    able = {name for row in wanted if row.kind == kind for name in row.peers}
    for subject in (
        ours("floor"),
        ours("ours"),
        *(subject for subject in peers if subject.name in able),
    ):
        samples.take(subject, kind)


def _loop_round(samples: Samples, wanted: Sequence[str], peers: Sequence[Subject]) -> None:
    for subject in (ours("floor"), ours("ours"), *peers):
        rows = [row for row in wanted if row not in WITHOUT_PEERS or subject not in peers]
        if (samples.value(SLOW_ROW, subject.name) or MIN_TURNS_PER_S) < MIN_TURNS_PER_S:
            rows = [row for row in rows if row != SLOW_ROW]
        if rows:
            samples.take(subject, "loop", ",".join(rows))
    if "turn" in wanted:
        samples.take(ours("floor_cached"), "loop", "turn")


@contextmanager
def _server() -> Iterator[str]:
    """Run the streaming server in its own process while the block runs."""
    command = [sys.executable, "-P", str(BENCH / "sse_server.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def _stream_round(samples: Samples, wanted: Sequence[str], peers: dict[str, Subject]) -> None:
    for dialect, sdk in SDKS.items():
        if f"stream_500_{dialect}" in wanted:
            subjects = [ours("stream_floor"), ours("stream_ours")]
            subjects += [peers[sdk]] if sdk in peers else []
            with _server() as address:
                for subject in subjects:
                    samples.take(subject, "stream", dialect, address)
