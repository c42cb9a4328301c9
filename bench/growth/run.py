"""How costs grow with turns, agents, records, sessions; ends with one JSON object.

Each operation is measured at several sizes by its CPU time: the lowest of several samples, because
other load can only increase it. With SQLite the VM steps are counted as well, which do not depend
on the load. The exponent is fitted over the largest sizes. Operations that are repeated, such as
those of each turn, may be constant or logarithmic in the history; operations that read their whole
input may be linear. The exit code is 1 if an operation grows faster.
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
    async for curve in curves(quick):
        found.append(curve)
        print(format_curve(curve), flush=True)
    return found


def format_curve(curve: Curve) -> str:
    """A curve in one line."""
    values = "  ".join(
        f"{size}: {value:g}" for size, value in zip(curve.sizes, curve.values, strict=True)
    )
    verdict = "ok" if curve.ok else "EXCEEDED"
    return (
        f"{curve.name:<48} {curve.exponent:>6.2f} of {curve.allowed:<4} {verdict:<8} "
        f"{curve.unit:<5} {values}  (±{curve.residual:g})"
    )


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="Use smaller sizes and only SQLite")
    parser.add_argument("--only", choices=PARTS, help="Measure one part only")
    options = parser.parse_args()
    found, seconds = list[Curve](), dict[str, float]()
    for name in (options.only,) if options.only else PARTS:
        began = time.perf_counter()
        found += asyncio.run(_part(name, options.quick))
        seconds[name] = round(time.perf_counter() - began, 1)
    not_ok = [curve.name for curve in found if not curve.ok]
    print(json.dumps({"curves": msgspec.to_builtins(found), "seconds": seconds, "not_ok": not_ok}))
    sys.exit(int(bool(not_ok)))


if __name__ == "__main__":
    main()
