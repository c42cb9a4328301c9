"""All performance benchmarks of the fleet; the last line is one JSON object.

Each part is a separate program in a new process: round trips, the footprint of an edge, a thousand
edges. All parts run even if one misses its target; then the exit code is 1.
"""

import json
import subprocess
import sys
from typing import Any

PARTS = {
    "roundtrip": "bench.fleet.roundtrip",
    "footprint": "bench.fleet.footprint",
    "many": "bench.fleet.many_edges",
}
"""The module of each part, by its key in the result."""


def run_part(module: str) -> tuple[dict[str, Any], bool]:
    """Run one part and print its output; its figures, and whether it met its target."""
    argv = [sys.executable, "-m", module]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line
    return json.loads(last), process.wait() == 0


def main() -> None:
    """Run all parts."""
    results = {part: run_part(module) for part, module in PARTS.items()}
    figures: dict[str, Any] = {part: result for part, (result, _) in results.items()}
    met = all(part_met for _, part_met in results.values())
    print(json.dumps(figures | {"met": met}), flush=True)
    sys.exit(int(not met))


if __name__ == "__main__":
    main()
