"""How costs grow with turns, agents, records, sessions; ends with one JSON object.

Each operation is measured at several sizes, by processor time: the least of several samples, for
other work on the machine can only add to it. With SQLite its steps are counted, too, which are the
same on every day. The exponent of a size is fitted over the largest ones. What is done for each
turn, or again and again, may be flat or logarithmic in the history; what goes through its whole
input, linear. The exit code is 1 if anything grows faster.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
import time
from collections.abc import AsyncGenerator, Callable

import msgspec
from bench.growth.curves import Curve

PARTS = {
    "turns": "bench.growth.turns",
    "stores": "bench.growth.stores",
    "fleets": "bench.growth.fleets",
    "crowds": "bench.growth.load",
    "rules": "bench.growth.rules",
}
"""Parts by the name that the result uses: the module that measures each."""


async def _part(name: str, quick: bool) -> list[Curve]:
    curves: Callable[[bool], AsyncGenerator[Curve]]
    curves = importlib.import_module(PARTS[name]).curves
    found: list[Curve] = []
    async for one in curves(quick):
        found.append(one)
        print(shown(one), flush=True)
    return found


def shown(one: Curve) -> str:
    """A curve in one line."""
    values = "  ".join(
        f"{size}: {value:g}" for size, value in zip(one.sizes, one.values, strict=True)
    )
    verdict = "ok" if one.ok else "TOO MUCH"
    return (
        f"{one.name:<48} {one.exponent:>6.2f} of {one.allowed:<4} {verdict:<8} "
        f"{one.unit:<5} {values}  (±{one.residual:g})"
    )


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, and SQLite alone")
    parser.add_argument("--only", choices=PARTS, help="one part")
    options = parser.parse_args()
    found, seconds = list[Curve](), dict[str, float]()
    for name in (options.only,) if options.only else PARTS:
        began = time.perf_counter()
        found += asyncio.run(_part(name, options.quick))
        seconds[name] = round(time.perf_counter() - began, 1)
    not_ok = [one.name for one in found if not one.ok]
    print(json.dumps({"curves": msgspec.to_builtins(found), "seconds": seconds, "not_ok": not_ok}))
    sys.exit(int(bool(not_ok)))


if __name__ == "__main__":
    main()
