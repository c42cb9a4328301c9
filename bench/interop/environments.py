"""Foreign software in environments of its own, outside the source tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".venv" / "interop"
INSTALL_TIMEOUT_S = 900
NPM_FLAGS = ("--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")


def python_environment(
    name: str,
    pins: Sequence[str],
    *,
    install: bool,
    interpreter: str = sys.executable,
    flags: Sequence[str] = (),
) -> Path | None:
    """The Python that has these packages; None if it is missing and not to be installed.

    `interpreter` makes the environment; `flags` are further options of `pip install`.
    """
    home = HOME / name
    python, ready = home / "bin" / "python", home / "pins.txt"
    wanted = "\n".join(pins)
    if ready.is_file() and ready.read_text() == wanted:
        return python
    if not install:
        return None
    _report(f"installing {', '.join(pins)}")
    _run([interpreter, "-m", "venv", "--clear", str(home)])
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run([*pip, *flags, *pins])
    ready.write_text(wanted)
    return python


def find_interpreter(name: str) -> str | None:
    """The path of another Python that really runs: a shim of a version manager may not."""
    found = shutil.which(name)
    if found is None or subprocess.run([found, "-V"], capture_output=True, check=False).returncode:
        return None
    return found


def node_environment(name: str, pins: dict[str, str], *, install: bool) -> Path | None:
    """The folder with these npm packages; None if it is missing and not to be installed."""
    home = HOME / name
    package, wanted = home / "package.json", json.dumps({"private": True, "dependencies": pins})
    ready = home / "ready"
    if ready.is_file() and package.read_text() == wanted:
        return home
    if not install:
        return None
    _report(f"installing {', '.join(f'{name}@{pin}' for name, pin in pins.items())}")
    home.mkdir(parents=True, exist_ok=True)
    package.write_text(wanted)
    from tests.providers.aimock.install import node, npm

    _run([*npm(node()), "install", *NPM_FLAGS], home)
    ready.touch()
    return home


def _run(command: Sequence[str], folder: Path | None = None) -> None:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    subprocess.run(command, cwd=folder, env=environment, check=True, timeout=INSTALL_TIMEOUT_S)


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
