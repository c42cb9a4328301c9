"""The long run of the bypass fuzzer; ends with one JSON object.

For each rule: how many examples there were, how many were allowed and so really run, and how many
of these did what the rule denies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

FUZZED_TESTS = "bypasses_a_deny_rule"
"""Part of the names of the tests that the long run repeats."""


def main() -> int:
    """Run it, with as many examples as `EVOCLAW_FUZZ` says."""
    tests = str(Path(__file__).with_name("test_bypass.py"))
    with TemporaryDirectory() as folder:
        tally = Path(folder) / "tally.json"
        env = {"EVOCLAW_FUZZ": "10000", **os.environ, "EVOCLAW_FUZZ_TALLY": str(tally)}
        command = [sys.executable, "-m", "pytest", "-k", FUZZED_TESTS, tests]
        code = subprocess.run(command, env=env, check=False).returncode
        sys.stdout.write((tally.read_text() if tally.exists() else "{}") + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
