"""Who is measured, and in which environment; a peer's is made once, by package name, and kept."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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

SWITCHES = {
    "AGNO_TELEMETRY": "false",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}
"""Telemetry and tracing, off for everybody."""


class CannotMeasure(Exception):
    """A subject cannot be measured here; the message says why, with no path and no address."""


@dataclass(frozen=True)
class Subject:
    """One of those measured: its interpreter and its script."""

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
    """A script that runs in our own environment."""
    return Subject(script, Path(sys.executable), BENCH / f"{script}.py")


def peer(package: str) -> Subject:
    """A peer in its own environment, made if it is not there."""
    home = ENVS / package
    python = home / "bin" / "python"
    ready = home / "installed"
    if not ready.exists():
        print(f"installing {package}", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(home)], None, 120)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, package], None, 900)
        ready.touch()
    return Subject(package, python, BENCH / "peers" / f"{package.replace('-', '_')}.py")


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
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise CannotMeasure(f"exit {done.returncode}: {_scrubbed(last)}")
    return done.stdout


def _scrubbed(text: str) -> str:
    text = re.sub(r"\w+://\S+", "<address>", text)
    return re.sub(r"(/[\w.@+-]+){2,}/?", "<path>", text)[:200]
