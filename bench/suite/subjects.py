"""The measured subjects and their environments; a peer's environment is created once and reused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BENCH = ROOT / "bench"
ENVS = ROOT / ".bench"
LOOPS = (
    "smolagents",
    "agno",
    "langchain",
    "langgraph",
    "strands-agents",
    "pydantic-ai-slim",
    "openai-agents",
    "google-adk",
)
SDKS = {"openai": "openai", "anthropic": "anthropic"}
"""Dialect of a streaming row: the official SDK that is its peer."""
EXTRA_PACKAGES = {
    "agno": ("sqlalchemy[asyncio]", "aiosqlite"),
    "langchain": ("langgraph-checkpoint-sqlite",),
    "langgraph": ("langgraph-checkpoint-sqlite",),
    "google-adk": ("aiosqlite",),
}
"""Packages that a peer needs to store its runs in SQLite, and does not depend on."""

SWITCHES = {
    "AGNO_TELEMETRY": "false",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}
"""Variables that turn off telemetry and tracing."""


class CannotMeasure(Exception):
    """Something cannot be measured here; the message has the reason, without paths and URLs."""


@dataclass(frozen=True)
class Subject:
    """A measured implementation: its interpreter and its script."""

    name: str
    python: Path
    script: Path

    def measure(self, *arguments: str) -> str:
        """Run the script; return the last line it printed."""
        env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        env |= SWITCHES | {"PYTHONPATH": str(BENCH), "HOME": str(ENVS), "PYTHONWARNINGS": "ignore"}
        # -P: a script named like the package it measures must not be imported in its place.
        done = _run([str(self.python), "-P", str(self.script), *arguments], env, 300)
        return done.strip().splitlines()[-1]


def ours(script: str) -> Subject:
    """A script that runs in EvoClaw's environment."""
    return Subject(script, Path(sys.executable), BENCH / f"{script}.py")


def peer(package: str) -> Subject:
    """A peer in its own environment, which is created if it is missing."""
    python = environment(package, [package, *EXTRA_PACKAGES.get(package, ())])
    return Subject(package, python, BENCH / "peers" / f"{package.replace('-', '_')}.py")


def environment(name: str, wanted: list[str]) -> Path:
    """The interpreter of an environment with these packages, which is created if it is missing."""
    home = ENVS / name
    python, ready = home / "bin" / "python", home / "installed"
    if not ready.exists() or ready.read_text().split() != wanted:
        print(f"installing {' '.join(wanted)}", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(home)], None, 120)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *wanted], None, 900)
        ready.write_text(" ".join(wanted))
    return python


def version_of(subject: Subject, package: str) -> str:
    """The version of a package in a subject's environment."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return _run([str(subject.python), "-c", code], None, 60).strip()


def _run(command: list[str], env: dict[str, str] | None, seconds: float) -> str:
    try:
        done = subprocess.run(
            command, env=env, cwd=BENCH, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"took longer than {seconds:.0f} s") from None
    except OSError as error:
        raise CannotMeasure(f"cannot be started ({type(error).__name__})") from None
    if done.returncode or not done.stdout and env is not None:
        raise CannotMeasure(f"exit {done.returncode}: {last_line(done.stderr)}")
    return done.stdout


def last_line(text: str) -> str:
    """The last line of an output, without paths and URLs."""
    last = (text.strip().splitlines() or ["no output"])[-1]
    last = re.sub(r"\w+://\S+", "<address>", last)
    return re.sub(r"(/[\w.@+-]+){2,}/?", "<path>", last)[:200]
