"""Measure the evolution engine: `make evobench` prints tables and ends with one JSON object.

`ARGS="--machinery"`, `--sealed`, `--rollback` or `--fleet` runs one part; figures of parts that did
not run are null. The machinery part takes edits whose effect is planted through the real gate:
1,000 without effect, 200 good ones and 200 traps. The sealed part evolves the texts of a real small
model on BFCL entries. The rollback part breaks bounds of a real service; the fleet part rolls a bad
genome out to 100 edges.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.evolution.campaign import CampaignResult, run_campaign
from bench.evolution.direct_runs import run_campaign_directly
from bench.evolution.fleet import fleet
from bench.evolution.rollback import rollback
from bench.evolution.sealed import add_options, measure_sealed
from bench.evolution.sealed_entries import SIZES

from evoclaw.evolution.cases import Split

NULL_EDITS, GOOD_EDITS, TRAPS = 1_000, 200, 200
MEMORY_FOLDER = Path("/dev/shm")
KEYS = (
    "null_edits", "false_promotions", "traps", "promoted_traps", "good_edits", "found",
    "sealed_cases", "sealed_before", "sealed_after", "sealed_interval",
    "rollback_worst_s", "fleet_edges", "fleet_got_bad", "fleet_restored_s",
)  # fmt: skip


def machinery(
    seed: int, null: int, good: int, traps: int, jobs: int, *, without_loop: bool
) -> dict[str, Any]:
    """Take edits with planted effects through the gate; each job is an agent with a lineage."""
    run = run_campaign_directly if without_loop else run_campaign
    if os.access(MEMORY_FOLDER, os.W_OK):
        tempfile.tempdir = str(MEMORY_FOLDER)
    shares = [tuple(_share(total, at, jobs) for total in (null, good, traps)) for at in range(jobs)]
    with ProcessPoolExecutor(jobs) as pool:
        started = [pool.submit(run, seed + at, *share) for at, share in enumerate(shares)]
        results = [future.result() for future in started]
    _print(results)
    promoted: Counter[str] = Counter()
    for result in results:
        promoted.update(result.promoted)
    return {
        "null_edits": null,
        "false_promotions": promoted["null"],
        "traps": traps,
        "promoted_traps": promoted["trap"],
        "good_edits": good,
        "found": promoted["good"],
    }


def _share(total: int, at: int, jobs: int) -> int:
    return total // jobs + (at < total % jobs)


def _print(results: Sequence[CampaignResult]) -> None:
    ends: dict[str, Counter[str]] = {}
    for result in results:
        for kind, found in result.ends.items():
            ends.setdefault(kind, Counter()).update(found)
    for kind, found in sorted(ends.items()):
        print(f"{kind} ({found.total()})")
        for end, count in found.most_common():
            print(f"    {count:5} {end}")
    for problem in (problem for result in results for problem in result.unexpected):
        print(f"not as planted: {problem}")
    runs = sum(result.runs for result in results)
    seconds = max(result.seconds for result in results)
    cpu = sum(result.cpu_seconds for result in results)
    print(f"{runs} runs, {seconds:.0f} s, {cpu:.0f} s of processor time")


def main(arguments: Sequence[str]) -> int:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(prog="make evobench", description=__doc__)
    for part in ("machinery", "rollback", "fleet"):
        parser.add_argument(f"--{part}", action="store_true", help=f"Run the {part} part only")
    parser.add_argument(
        "--sealed", type=int, nargs="?", const=SIZES[Split.SEALED], metavar="ENTRIES",
        help=f"Run the sealed part only, with so many sealed entries [{SIZES[Split.SEALED]}]",
    )  # fmt: skip
    parser.add_argument("--null", type=int, default=NULL_EDITS, help="Edits without effect")
    parser.add_argument("--good", type=int, default=GOOD_EDITS, help="Good edits")
    parser.add_argument("--traps", type=int, default=TRAPS, help="Traps")
    parser.add_argument("--jobs", type=int, default=2, help="Agents, each in a process [2]")
    parser.add_argument("--seed", type=int, default=1, help="Of the edits and of the model [1]")
    parser.add_argument(
        "--without-loop", action="store_true", help="Draw the outcomes of validation runs directly"
    )
    add_options(parser)
    chosen = parser.parse_args(arguments)
    parts = (chosen.machinery, chosen.sealed is not None, chosen.rollback, chosen.fleet)
    every = not any(parts)
    figures: dict[str, Any] = dict.fromkeys(KEYS)
    if chosen.machinery or every:
        figures |= machinery(
            chosen.seed, chosen.null, chosen.good, chosen.traps, chosen.jobs,
            without_loop=chosen.without_loop,
        )  # fmt: skip
    if chosen.sealed is not None or every:
        chosen.sealed = SIZES[Split.SEALED] if chosen.sealed is None else chosen.sealed
        figures |= measure_sealed(chosen)
    if chosen.rollback or every:
        figures |= rollback()
    if chosen.fleet or every:
        figures |= fleet()
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
