"""Install pinned packages with pip, with one line of progress: `install.py PYTHON FILE`.

Pip alone is either silent for minutes or prints a page. If it fails, all that it said is printed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

PIN = re.compile(r"^[\w.-]+==", re.MULTILINE)
STEP = re.compile(r"^(Collecting|Processing|Ignoring|Installing collected packages)")
OPTIONS = (
    *("--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
    # The file is complete: pip must not resolve dependencies again to newer releases.
    *("--require-hashes", "--no-deps"),
)


def main() -> int:
    """Install one file of pins; pip's exit code."""
    python, file = sys.argv[1:]
    total = len(PIN.findall(Path(file).read_text(encoding="utf-8")))
    command = (python, "-m", "pip", "install", *OPTIONS, "-r", file)
    started, collected = time.monotonic(), 0
    said: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            said.append(line)
            step = STEP.match(line)
            if step and step[1].startswith("Installing"):
                _show(f"{file}: unpacking {total} packages")
            elif step:
                collected += 1
                if sys.stdout.isatty() or collected % 10 == 0:
                    _show(f"{file}: downloading package {collected} of {total}")
    if pip.returncode:
        sys.stdout.write(f"\n{''.join(said)}")
    else:
        _show(f"{file}: {total} packages in {time.monotonic() - started:.0f} s")
        sys.stdout.write("\n" if sys.stdout.isatty() else "")
    return pip.returncode


def _show(text: str) -> None:
    """Replace the line at a terminal; in a log, each is a line of its own."""
    sys.stdout.write(f"\r\033[K{text}" if sys.stdout.isatty() else f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
