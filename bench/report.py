"""Makes `docs/benchmarks.md` from `bench/results.json`; run alone, it makes the page anew."""

import json

from rows import ROWS
from subjects import BENCH, ROOT, SDKS

OFFICIAL = "official SDK"

PAGE = """\
# Benchmarks

<!-- Made by bench/report.py from bench/results.json; change those, not this. -->

What the loop itself costs: an in-process fake model asks for calls of a trivial tool, so all
that is measured is the work between a reply and the next request. Everybody does the same script.

Measured on {date}: {cpu}, {cores} cores, {kernel}, Python {python}.

{table}

In brackets: how many times the floor; for a rate, how many times slower than it.

Versions: {versions}.
{problems}
## How to repeat

```sh
make bench                                      # all of it; makes .bench/ on the first run
.venv/bin/python bench/run.py --only turn       # rows whose name begins so
.venv/bin/python bench/run.py --no-peers        # us and the floor
.venv/bin/python bench/run.py --quick           # one round
```

Only a full run writes this page. Each peer is installed by package name, at its newest version,
into its own environment under `.bench/`; remove that directory to take newer ones.

## How each row is measured

{rows}

Everybody is measured in a process of its own, one after the other, in several rounds; a figure is
the median of the rounds, and a round's is the median of its samples after a warm-up. Making the
agent and the model is not timed. Each run's calls are counted, so no subject can leave one out.

## Caveats

- Real models take seconds for a reply. These figures matter for many runs on one machine, for
  small devices, and as a measure of needless work; not for how long one answer takes.
- The subjects do not do the same. The floor checks nothing but types and records nothing. Ours
  validates, judges and records each call. Peers offer features that we do not, and the other way
  round; each is used as directly as its public API allows, with an async tool and the async
  interface where it has one, and with telemetry, tracing and console output off where it has a
  switch.
- The floor of the turn rows encodes the whole history each turn, as a client without a cache does.
  A floor that encodes only the new messages is lower, and our ratio to it correspondingly worse.
- `langgraph` is a graph of a model node and its `ToolNode` built by hand, which is faster
  than its deprecated `create_react_agent`.
- `pydantic-ai-slim` runs its own `FunctionModel` with a stated usage, which spares it an estimate
  over the whole history each turn. `smolagents` has no async interface and ends a run with a call
  of `final_answer`; its five parallel calls are five threads.
- The streaming server sends in a burst, so a slow client finds more in each read and is flattered.
  With a real model each chunk arrives alone and everybody pays for waking up.
- In the memory row only what is resident counts, not what a first request would still import.
"""


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _cell(value: float | None, row: dict) -> str:
    floor = row["floor"]
    if value is None or not floor or row["unit"] == "ratio":
        return _number(value)
    times = value / floor if row["better"] == "lower" else floor / value
    return f"{_number(value)} ({_number(float(f'{times:.2g}'))}×)"


def table(found: dict) -> str:
    """The table: rows down, subjects across; peers that no row has are left out."""
    names = list(dict.fromkeys(name for row in found["rows"] for name in row["peers"]))
    sdks = [name for name in names if name in SDKS.values()]
    names = [name for name in names if name not in sdks] + ([OFFICIAL] if sdks else [])
    head = ["row", "unit", "better", "floor", "evoclaw", *names]
    lines = [head, ["---"] * len(head)]
    for row in found["rows"]:
        shown = {OFFICIAL if name in sdks else name: v for name, v in row["peers"].items()}
        peers = [_cell(shown.get(name), row) for name in names]
        known = [_number(row["floor"]), f"**{_cell(row['ours'], row)}**"]
        lines.append([f"`{row['name']}`", row["unit"], row["better"], *known, *peers])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _problems(found: dict) -> str:
    if not found["problems"]:
        return ""
    lines = [f"- `{name}` could not be measured: {why}" for name, why in found["problems"].items()]
    return "\n" + "\n".join(lines) + "\n"


def page(found: dict) -> str:
    """The whole page."""
    return PAGE.format(
        date=found["date"],
        **found["machine"],
        table=table(found),
        versions=", ".join(f"{name} {version}" for name, version in found["versions"].items()),
        problems=_problems(found),
        rows="\n".join(
            f"- `{row.name}` ({row.unit}, {row.better} is better): {row.how}" for row in ROWS
        ),
    )


if __name__ == "__main__":
    results = json.loads((BENCH / "results.json").read_text())
    (ROOT / "docs" / "benchmarks.md").write_text(page(results))
