"""Measure EvoClaw, the floor and the peers in one run; the last line is the result as JSON.

A full run also writes `bench/results.json` and `docs/benchmarks.md`; a partial run (`--only`,
`--no-peers`, `--quick`) only prints, except for `--only` with `--write`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from bench.suite import report
from bench.suite.parts import PARTS, Outcome, run_part
from bench.suite.results import merged, result
from bench.suite.rows import LOOP_ROWS, ROWS
from bench.suite.samples import ROUNDS, Samples, make_peers, measure
from bench.suite.subjects import BENCH, ROOT


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME", default="", help="Measure rows whose name starts with NAME"
    )
    parser.add_argument(
        "--no-peers", action="store_true", help="Measure only EvoClaw and the floor"
    )
    parser.add_argument(
        "--quick", action="store_true", help="Measure one round and shortened parts"
    )
    parser.add_argument("--write", action="store_true", help="Store the rows of a partial run")
    options = parser.parse_args()
    names = [row.name for row in ROWS] + [part.name for part in PARTS if not part.rows]
    if options.write and (options.quick or options.no_peers):
        parser.error("--write cannot be combined with --quick or --no-peers: rows are incomplete")
    if not any(name.startswith(options.only) for name in names):
        parser.error(f"no row starts with {options.only!r}. Rows: {', '.join(names)}")
    return options


def _write(found: dict[str, Any], whole: bool) -> None:
    path = BENCH / "results.json"
    if not whole and path.exists():
        found = merged(json.loads(path.read_text()), found)
    path.write_text(json.dumps(found, indent=2) + "\n")
    (ROOT / "docs" / "benchmarks.md").write_text(report.page(found))


def main() -> None:
    """Parse the command line, measure, and report."""
    options, samples, began = _options(), Samples(), time.perf_counter()
    wanted = [row for row in ROWS if row.name.startswith(options.only)]
    in_rounds = [row for row in wanted if row in LOOP_ROWS]
    peers = {} if options.no_peers else make_peers(samples, in_rounds)
    if in_rounds:
        measure(samples, in_rounds, peers, 1 if options.quick else ROUNDS)
        print(f"rounds: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    outcomes: dict[str, Outcome] = {}
    for part in PARTS:
        if part.is_wanted(options.only):
            outcomes[part.name] = run_part(part, quick=options.quick, peers=not options.no_peers)
    found = result(samples, wanted, peers, outcomes)
    whole = not (options.only or options.no_peers or options.quick)
    if whole or options.write:
        _write(found, whole)
    print(report.table(found), file=sys.stderr)
    print(f"{time.perf_counter() - began:.0f} s in total", file=sys.stderr)
    print(json.dumps(found), flush=True)
    sys.exit(any(row["ours"] is None or row["floor"] is None for row in found["rows"]))


if __name__ == "__main__":
    main()
