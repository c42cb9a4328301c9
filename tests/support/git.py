"""Real repositories for the git tools."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_AUTHOR_DATE": "2025-02-15T10:00:00+00:00",
    "GIT_COMMITTER_DATE": "2025-02-15T10:00:00+00:00",
    "GIT_TERMINAL_PROMPT": "0",
}


def plain(folder: Path, *arguments: str, check: bool = True, stdin: str = "") -> str:
    """Run git as a person would, with nothing forced."""
    env = ENVIRONMENT | {"HOME": os.environ["HOME"]}
    done = subprocess.run(
        ("git", *arguments),
        cwd=folder,
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"git {arguments}: {done.stderr}")
    return done.stdout.strip()


def make(folder: Path) -> Path:
    """Make a repository with two branches, `main` and `other`, and two commits on `main`."""
    folder.mkdir(parents=True, exist_ok=True)
    plain(folder, "init", "--quiet", "--initial-branch=main")
    plain(folder, "config", "user.name", "Bowen")
    plain(folder, "config", "user.email", "bowen@example.org")
    (folder / "a.txt").write_text("one\ntwo\n")
    (folder / "b.txt").write_text("bee\n")
    plain(folder, "add", ".")
    plain(folder, "commit", "--quiet", "-m", "Initial commit")
    plain(folder, "branch", "other")
    (folder / "a.txt").write_text("one\n2\n")
    plain(folder, "commit", "--quiet", "-a", "-m", "Fix bug\n\nIt was a word.")
    return folder
