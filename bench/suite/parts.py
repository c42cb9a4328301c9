"""The parts: separate programs whose last line is JSON, run one after the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.suite.rows import ROWS, Row
from bench.suite.subjects import ROOT, CannotMeasure, last_line


@dataclass(frozen=True)
class Part:
    """A program that measures some rows."""

    name: str
    argv: tuple[str, ...]
    """The arguments of the Python interpreter."""
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    """The options for a full and for a quick run."""
    seconds: float = 300.0
    """The timeout, after which it is killed."""
    peers: tuple[str, ...] = ()
    """The options that add peers."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows that it measures."""
        return tuple(row for row in ROWS if row.kind == self.name)

    def is_wanted(self, prefix: str) -> bool:
        """Whether the name of one of its rows, or its own if it has none, starts with a prefix."""
        names = [row.name for row in self.rows] or [self.name]
        return any(name.startswith(prefix) for name in names)


def _fleet(name: str) -> tuple[str, str]:
    return "-m", f"bench.fleet.{name}"


SHORT = ("--rounds", "1", "--seconds", "0.5")
PARTS = (
    Part(
        "roundtrip",
        _fleet("roundtrip"),
        ("--rounds", "3", "--seconds", "1.5"),
        SHORT,
        peers=("--peers",),
    ),
    Part(
        "mosquitto",
        (*_fleet("roundtrip"), "--engine", "mosquitto"),
        ("--rounds", "2", "--seconds", "1.5"),
        SHORT,
    ),
    Part("footprint", _fleet("footprint"), (), ("--rounds", "2")),
    Part("many", _fleet("many_edges"), (), ("--edges", "100")),
    Part("sqlite", ("-m", "bench.appends", "--store", "sqlite"), (), SHORT),
    Part("postgres", ("-m", "bench.appends", "--store", "postgres"), (), SHORT),
    Part("policies", ("-m", "bench.policies"), (), ("--rounds", "2")),
    Part("sandboxes", ("-m", "bench.sandboxes"), (), ("--times", "20")),
    Part("growth", ("-m", "bench.growth.run"), (), ("--quick",), 600.0),
    Part("soak", ("-m", "bench.soak"), (), ("--turns", "300", "--warm-up", "100"), 600.0),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a part."""

    seconds: float
    figures: Mapping[str, Any]
    met: bool = True
    """Whether it met its own target."""
    why: str = ""
    """Why it has no figures."""


def run_part(part: Part, *, quick: bool, peers: bool = True) -> Outcome:
    """Run a part and copy its output to standard error; failures are returned, not raised."""
    argv = [sys.executable, *part.argv, *(part.quick if quick else part.full)]
    argv += part.peers if peers else ()
    print(f"part {part.name}", file=sys.stderr, flush=True)
    began = time.perf_counter()
    try:
        last, code = _run(argv, part.seconds)
        figures = json.loads(last)
        if not isinstance(figures, dict):
            raise CannotMeasure("the last line is not a JSON object")
    except (CannotMeasure, ValueError) as error:
        why = "the last line is not JSON" if isinstance(error, ValueError) else str(error)
        outcome = Outcome(_since(began), {}, met=False, why=why)
    else:
        outcome = Outcome(_since(began), figures, met=code == 0)
    reason = f"  {outcome.why}" if outcome.why else ""
    print(f"part {part.name}: {outcome.seconds:.0f} s{reason}", file=sys.stderr, flush=True)
    return outcome


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 1)


def _run(argv: list[str], seconds: float) -> tuple[str, int]:
    """Run a program; the last line of its output, and its exit code."""
    with tempfile.TemporaryFile("w+") as errors:
        # Its own process group, so that its children are killed as well after the timeout.
        process = subprocess.Popen(
            argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        late = threading.Event()

        def end() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(seconds, end)
        timer.start()
        last = ""
        assert process.stdout is not None
        try:
            with process.stdout:
                for line in process.stdout:
                    print(f"  {line}", end="", file=sys.stderr, flush=True)
                    last = line if line.strip() else last
            code = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:  # an interrupt does not reach its process group
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if late.is_set():
            raise CannotMeasure(f"took longer than {seconds:.0f} s")
        if code and not last.startswith("{"):
            errors.seek(0)
            raise CannotMeasure(last_line(errors.read()))
        return last, code


def figure(figures: Mapping[str, Any], path: str) -> float | None:
    """A figure of a part with four digits; a dot in its path separates nested keys."""
    found: Any = figures
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return float(f"{found:.4g}") if isinstance(found, int | float) else None
