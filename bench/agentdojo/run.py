"""AgentDojo against our rules: makes an environment for it, once, and drives every pair in there.

The last line printed is the result as JSON. `--modes unattended,attended` leaves the others out;
`--rows FILE` keeps every single outcome.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
ENV = ROOT / ".bench" / "agentdojo"
PINNED = "agentdojo==0.1.35"
NEEDS = ("msgspec", "jsonschema-rs")
"""What our own core imports; pinned as in `constraints.txt`."""


def pinned(name: str) -> str:
    """A package with the version that the house is tested with."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith(f"{name}=="):
            return line.split()[0]
    raise SystemExit(f"constraints.txt does not pin {name}; run: make constraints")


def make() -> Path:
    """The environment's Python; made anew when the pins have changed."""
    wanted = [PINNED, *map(pinned, NEEDS)]
    python, note = ENV / "bin" / "python", ENV / "pins.txt"
    if not note.exists() or note.read_text().split() != wanted:
        print(f"making an environment with {', '.join(wanted)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENV)], check=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([str(python), "-m", "pip", "install", *quiet, *wanted], check=True)
        note.write_text("\n".join(wanted))
    return python


def main() -> int:
    command = [str(make()), str(Path(__file__).with_name("evaluate.py")), *sys.argv[1:]]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
