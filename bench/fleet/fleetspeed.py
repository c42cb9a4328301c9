"""All of the fleet's speeds, one after the other; the last line is one JSON object.

Each part is a program of its own, in a fresh process: round trips, an edge's footprint, a thousand
edges. All of them run, also when one misses its target; then the exit code is 1.
"""

import json
import subprocess
import sys
from typing import Any

PARTS = ("roundtrip", "footprint", "many")


def measured(part: str) -> tuple[dict[str, Any], bool]:
    """Run one part, showing what it says; its figures, and whether it met its target."""
    argv = [sys.executable, "-m", f"bench.fleet.{part}"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line
    return json.loads(last), process.wait() == 0


def main() -> None:
    """Measure everything."""
    results = {part: measured(part) for part in PARTS}
    figures: dict[str, Any] = {part: found for part, (found, _) in results.items()}
    met = all(good for _, good in results.values())
    print(json.dumps(figures | {"met": met}), flush=True)
    sys.exit(int(not met))


if __name__ == "__main__":
    main()
