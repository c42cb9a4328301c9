"""Measure us, the floor and the peers in one run; the last line printed is the result as JSON.

A full run also writes `bench/results.json` and `docs/benchmarks.md`; one that leaves something out
(`--only`, `--no-peers`, `--quick`) only prints.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import report
from rows import ROWS, Row
from subjects import BENCH, LOOPS, ROOT, SDKS, CannotMeasure, Subject, ours, peer, version_of

ROUNDS = 4
SLOW, ENOUGH = "concurrent_runs", 1_000
"""A row that takes some 15 seconds: whoever makes less than this a second does it once."""
LONGEST = ("flatness_1000", "flatness_1000_loop")
"""Only for us and the floor."""


class Samples:
    """What was measured: row and subject to the medians of the rounds, and what went wrong."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.problems: dict[str, str] = {}

    def take(self, subject: Subject, *arguments: str) -> None:
        """Measure a subject once."""
        if subject.name in self.problems:
            return
        print(f"  {subject.name} {arguments[0]}", file=sys.stderr, flush=True)
        try:
            for row, values in json.loads(subject.measure(*arguments)).items():
                self.values[row, subject.name].append(median(values))
        except (CannotMeasure, ValueError) as error:
            self.problems[subject.name] = str(error)

    def value(self, row: str, *names: str) -> float | None:
        """The median of a subject's rounds; None if it was not measured."""
        values = [value for name in names for value in self.values[row, name]]
        return float(f"{median(values):.4g}") if values else None


def make_peers(samples: Samples, wanted: list[Row]) -> dict[str, Subject]:
    """The environments of the peers that the wanted rows need."""
    packages = {package for row in wanted for package in row.peers}
    found: dict[str, Subject] = {}
    for package in (name for name in (*LOOPS, *SDKS.values()) if name in packages):
        try:
            found[package] = peer(package)
        except CannotMeasure as error:
            samples.problems[package] = f"not installed: {error}"
    return found


def loop_round(samples: Samples, wanted: list[str], peers: list[Subject]) -> None:
    """Measure everybody once in the rows of the loop, one after the other."""
    for subject in (ours("floor"), ours("ours"), *peers):
        rows = [row for row in wanted if row not in LONGEST or subject not in peers]
        if (samples.value(SLOW, subject.name) or ENOUGH) < ENOUGH:
            rows = [row for row in rows if row != SLOW]
        if rows:
            samples.take(subject, ",".join(rows))


@contextmanager
def server() -> Iterator[str]:
    """The streaming server in its own process, while the block runs."""
    command = [sys.executable, "-P", str(BENCH / "sse_server.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def stream_round(samples: Samples, wanted: list[str], peers: dict[str, Subject]) -> None:
    """Measure the clients once, one after the other."""
    for dialect, sdk in SDKS.items():
        if f"stream_500_{dialect}" in wanted:
            subjects = [ours("stream_floor"), ours("stream_ours")]
            subjects += [peers[sdk]] if sdk in peers else []
            with server() as address:
                for subject in subjects:
                    samples.take(subject, dialect, address)


def measure(samples: Samples, wanted: list[Row], peers: dict[str, Subject], rounds: int) -> None:
    """Measure round by round, so that a noisy minute hits everybody alike."""
    names = [row.name for row in wanted]
    loops = [subject for name, subject in peers.items() if name in LOOPS]
    in_loop = [row.name for row in wanted if row.kind == "loop"]
    imports = any(row.kind == "import" for row in wanted)
    if imports:  # once unmeasured, so that no round compiles or reads from a cold disk
        for subject in (ours("floor"), ours("ours"), *loops):
            Samples().take(subject, "import")
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        if imports:
            for subject in (ours("floor"), ours("ours"), *loops):
                samples.take(subject, "import")
        loop_round(samples, in_loop, loops)
        stream_round(samples, names, peers)


def machine() -> dict[str, object]:
    """What this was measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def result(samples: Samples, wanted: list[Row], peers: dict[str, Subject]) -> dict[str, object]:
    """All of it, as it is written down."""
    own = ours("ours")
    versions = {name: version_of(own, name) for name in ("evoclaw", "msgspec", "aiohttp")}
    versions |= {name: version_of(subject, name) for name, subject in peers.items()}
    rows = [
        {
            "name": row.name,
            "unit": row.unit,
            "better": row.better,
            "ours": samples.value(row.name, "ours", "stream_ours"),
            "floor": samples.value(row.name, "floor", "stream_floor"),
            "peers": {name: samples.value(row.name, name) for name in row.peers},
        }
        for row in wanted
    ]
    return {
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": versions,
        "rows": rows,
        "problems": samples.problems,
    }


def main() -> None:
    """Read the options, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", default="", help="rows whose name begins so")
    parser.add_argument("--no-peers", action="store_true", help="only us and the floor")
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    wanted = [row for row in ROWS if row.name.startswith(options.only)]
    if not wanted:
        parser.error(f"no row begins with {options.only!r}: {', '.join(r.name for r in ROWS)}")
    samples = Samples()
    peers = {} if options.no_peers else make_peers(samples, wanted)
    measure(samples, wanted, peers, 1 if options.quick else ROUNDS)
    found = result(samples, wanted, peers)
    if not (options.only or options.no_peers or options.quick):
        (BENCH / "results.json").write_text(json.dumps(found, indent=2) + "\n")
        (ROOT / "docs" / "benchmarks.md").write_text(report.page(found))
    print(report.table(found), file=sys.stderr)
    print(json.dumps(found), flush=True)
    sys.exit(any(row["ours"] is None or row["floor"] is None for row in found["rows"]))


if __name__ == "__main__":
    main()
