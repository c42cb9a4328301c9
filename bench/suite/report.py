"""Makes `docs/benchmarks.md` from `bench/results.json`; run alone, it makes the page anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bench.suite.rows import ROWS
from bench.suite.subjects import BENCH, LOOPS, ROOT

Found = Mapping[str, Any]
"""What is in `bench/results.json`."""
OTHERS = "others"
AIM, FLOOR_OF_THEN = 5, 14.0
"""A turn is to cost at most so many times its floor, which was so many µs when that was decided."""
LEVEL = 0.05
"""Nearer than this, two figures are the same to all intents."""

PAGE = """\
# Benchmarks

<!-- Made by bench/suite/report.py from bench/results.json; change those, not this. -->

What everything costs, beside a floor that does no more than it must and beside peers where they do
the same thing. Read the ratios: times are those of one small machine.

Measured on {date}: {cpu}, {cores} cores, {kernel}, Python {python}.{earlier}

{table}

In brackets: how many times the floor; for a rate, how many times slower than it. Below 1×, it is
ahead of the floor. `–` is what somebody does not do, or was not asked for.

Versions: {versions}.
{problems}
## Where a peer is ahead

{behind}

{turn}
{curves}{soak}
## How to repeat

```sh
make bench                                      # all of it; makes .bench/ on the first run
.venv/bin/python bench/run.py --only turn       # rows whose name begins so
.venv/bin/python bench/run.py --no-peers        # us and the floor
.venv/bin/python bench/run.py --quick           # one round, and short parts
.venv/bin/python bench/run.py --only cage --write    # these rows anew, the others as they were
```

Only a full run writes this page, or one that is told to. Each peer is installed by package name,
at its newest version, into its own environment under `.bench/`; remove that directory to take newer
ones.

The loop, the imports, the stored turns and the streams are measured in rounds, everybody in a
process of its own and one after the other; a figure is the median of the rounds, and a round's is
the median of its samples after a warm-up. Making the agent and the model is not timed. Each run's
calls are counted, so no subject can leave one out. The other rows come from programs of their own,
which measure ours and the floor one after the other:

{parts}

## How each row is measured

{rows}

## Caveats

- Real models take seconds for a reply. The figures of the loop matter for many runs on one machine,
  for small devices, and as a measure of needless work; not for how long one answer takes.
- The subjects do not do the same. The floor checks nothing but types and records nothing. Ours
  validates, judges and records each call. Peers offer features that we do not, and the other way
  round; each is used as directly as its public API allows, with an async tool and the async
  interface where it has one, and with telemetry, tracing and console output off where it has a
  switch.
- The model of the loop's rows is a function in the same process. Ours, like those of the peers,
  gives finished replies, and puts the bytes of each request together; the floor's replies are
  encoded and decoded once each. What a reply costs that comes over a wire is in the streaming rows.
- `langgraph` is a graph of a model node and its `ToolNode` built by hand, which is faster
  than its deprecated `create_react_agent`.
- `pydantic-ai-slim` runs its own `FunctionModel` with a stated usage, which spares it an estimate
  over the whole history each turn. `smolagents` has no async interface and ends a run with a call
  of `final_answer`; its five parallel calls are five threads.
- The streaming server sends in a burst, so a slow client finds more in each read and is flattered.
  With a real model each chunk arrives alone and everybody pays for waking up.
- In the memory rows only what is resident counts, not what a first request would still import.
"""


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cell(value: float | None, row: Found) -> str:
    floor = row["floor"]
    if value is None or not floor or not value or row["unit"] == "ratio":
        return _number(value)
    times = value / floor if row["better"] == "lower" else floor / value
    return f"{_number(value)} ({_number(float(f'{times:.2g}'))}×)"


def table(found: Found) -> str:
    """The table: rows down, subjects across; whoever has few rows is named in the last column."""
    there = {name for row in found["rows"] for name in row["peers"]}
    names = [name for name in LOOPS if name in there]
    last = [OTHERS] if there - set(names) else []
    head = ["row", "unit", "better", "floor", "evoclaw", *names, *last]
    lines = [head, ["---"] * len(head)]
    for row in found["rows"]:
        peers = [_cell(row["peers"].get(name), row) for name in names]
        few = [f"{n} {_cell(v, row)}" for n, v in row["peers"].items() if n not in names]
        known = [_number(row["floor"]), f"**{_cell(row['ours'], row)}**"]
        others = [", ".join(few) or "–"] if last else []
        lines.append([f"`{row['name']}`", row["unit"], row["better"], *known, *peers, *others])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ahead_of_us(found: Found) -> Iterator[tuple[str, str, float, float]]:
    """Every row and peer in which that peer is ahead: their names, its figure, ours."""
    for row in found["rows"]:
        for name, value in row["peers"].items():
            if value is None or row["ours"] is None:
                continue
            if value < row["ours"] if row["better"] == "lower" else value > row["ours"]:
                yield row["name"], name, value, row["ours"]


def behind(found: Found) -> str:
    """What is to be said of the rows that we do not lead."""
    reasons = {(row.name, peer): why for row in ROWS for peer, why in row.trails.items()}
    lines = [
        f"- `{row}`: {peer} {_number(value)}, we {_number(own)}"
        f"{' (nearer than 5 %)' if abs(value - own) <= LEVEL * own else ''}:"
        f" {reasons.get((row, peer), 'nobody has found out why yet')}."
        for row, peer, value, own in ahead_of_us(found)
    ]
    compared = sum(
        value is not None and row["ours"] is not None
        for row in found["rows"]
        for value in row["peers"].values()
    )
    said = f"Of {compared} comparisons with a peer, we are ahead in {compared - len(lines)}"
    return "\n".join([f"{said}; the others:\n", *lines]) if lines else f"{said}: all."


def _turn(found: Found) -> str:
    """How the turn stands to its floors, that of then included."""
    row = next((one for one in found["rows"] if one["name"] == "turn"), None)
    if row is None or not row["ours"] or not row["floor"]:
        return ""
    own, floor = row["ours"], row["floor"]
    floors = found.get("floors") or {}
    new = floors.get("turn_new")
    cached = (
        f" With a cache, that encodes only what is new, the floor is {new:.3g} µs" if new else ""
    )
    return (
        f"The aim for `turn` is {AIM} times its floor. That floor is a bare loop that encodes the"
        f" whole history, encodes and decodes the reply, decodes the arguments and calls the"
        f" function: {floor:.3g} µs here, so ours is **{own / floor:.1f} times** it."
        f" When the aim was set, {FLOOR_OF_THEN:.0f} µs had been measured for the floor; against"
        f" that, ours is {own / FLOOR_OF_THEN:.1f} times."
        + (f"{cached}, and ours {own / new:.1f} times that." if new else "")
        + "\n"
    )


STEPS = ", steps)"
"""How the name of a curve ends that counts the steps of SQLite instead of time."""


def _exponent(one: Found) -> str:
    return f"{round(one['exponent'], 2) + 0.0:.2f}"  # never -0.00


def _curve(one: Found, steps: Found | None) -> list[str]:
    sizes, values = one["sizes"], one["values"]
    good = one["ok"] and (steps is None or steps["ok"])
    return [
        *(one["name"], f"{sizes[0]:,} to {sizes[-1]:,}"),
        *(_number(values[0]), _number(values[-1]), one["unit"], _exponent(one)),
        "–" if steps is None else _exponent(steps),
        *(f"{one['allowed']:g}", "" if good else "**too much**"),
    ]


def _curves(found: Found) -> str:
    """How costs grow: a table of exponents."""
    curves: Mapping[str, Found] = {one["name"]: one for one in found.get("curves") or ()}
    if not curves:
        return ""
    head = ["what", "size", "at first", "at last", "unit", "exponent", "of steps", "allowed", ""]
    lines = [head, ["---"] * len(head)]
    for name, one in curves.items():
        timed = f"{name.removesuffix(STEPS)})"
        if not (name.endswith(STEPS) and timed in curves):
            lines.append(_curve(one, curves.get(f"{name.removesuffix(')')}{STEPS}")))
    shown = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    good = sum(bool(one["ok"]) for one in curves.values())
    return f"""
## How costs grow

`make growth` measures each cost at several sizes and fits the exponent over the larger ones: 0 is
flat, 1 grows as its input does. What is done for each turn may not grow with the history; what goes
through a whole input may grow as it does. With SQLite its steps are counted as well, which no noise
can change. {good} of {len(curves)} curves are within what is allowed.

{shown}
"""


def _soak(found: Found) -> str:
    """What became of one process after many turns."""
    soak: Found = found.get("soak") or {}
    if not soak:
        return ""
    counts = [
        f"{name} {value[0]:,} → {value[1]:,}"
        for name, value in soak.items()
        if isinstance(value, list) and name != "samples_mb"
    ]
    return f"""
## A long run

`make soak`: {soak["turns"]:,} turns in one process, with {soak["store"]}, in {soak["seconds"]:,} s.
Memory after the warm-up {soak["rss_after_warm_up_mb"]} MB, at the end {soak["rss_end_mb"]} MB
({100 * soak["growth"]:+.1f} %). Then and at the end, at rest: {", ".join(counts)}.
{"Nothing stayed behind." if soak["ok"] else "**Something stayed behind.**"}
"""


def _problems(found: Found) -> str:
    parts: Found = found.get("parts") or {}
    lines = [f"- {name} could not be measured: {why}" for name, why in found["problems"].items()]
    lines += [
        f"- part `{name}` could not be measured here: {part['why']}"
        for name, part in parts.items()
        if part["why"]
    ]
    missed = [name for name, part in parts.items() if not part["met"] and not part["why"]]
    lines += [f"- part `{name}` did not reach its own target in this run" for name in missed]
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _parts(found: Found) -> str:
    parts: Found = found.get("parts") or {}
    lines = [f"`{name}` {part['seconds']:.0f} s" for name, part in parts.items()]
    return f"- {', '.join(lines)}" if lines else "- none of them was run"


def _earlier(found: Found) -> str:
    """Which rows are older than the page's date."""
    dates: Mapping[str, str] = found.get("dates") or {}
    older = sorted((date, name) for name, date in dates.items() if date != found["date"])
    if not older:
        return ""
    return " Measured earlier: " + ", ".join(f"`{name}` on {date}" for date, name in older) + "."


def page(found: Found) -> str:
    """The whole page."""
    return PAGE.format(
        date=found["date"],
        **found["machine"],
        earlier=_earlier(found),
        table=table(found),
        versions=", ".join(f"{name} {version}" for name, version in found["versions"].items()),
        problems=_problems(found),
        behind=behind(found),
        turn=_turn(found),
        curves=_curves(found),
        soak=_soak(found),
        parts=_parts(found),
        rows="\n".join(
            f"- `{row.name}` ({row.unit}, {row.better} is better): {row.how}"
            for row in ROWS
            if any(one["name"] == row.name for one in found["rows"])
        ),
    )


def main() -> None:
    """Make the page anew from what is there."""
    results = json.loads((BENCH / "results.json").read_text())
    (ROOT / "docs" / "benchmarks.md").write_text(page(results))


if __name__ == "__main__":
    main()
