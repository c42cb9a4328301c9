"""The parts: programs of their own that end with one line of JSON, run one after the other."""

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
    """A program that gives figures."""

    name: str
    argv: tuple[str, ...]
    """After the interpreter."""
    full: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    """How it is told to take as long as it needs, or to be done soon."""
    seconds: float = 300.0
    """Longer than this, and it is ended."""
    peers: tuple[str, ...] = ()
    """How it is told to measure others, too."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows that it gives."""
        return tuple(row for row in ROWS if row.kind == self.name)

    def is_wanted(self, prefix: str) -> bool:
        """Whether something of it begins so: a row's name, or its own if it has no rows."""
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
    """What became of a part."""

    seconds: float
    figures: Mapping[str, Any]
    met: bool = True
    """Whether it reached what it is to reach by itself."""
    why: str = ""
    """Why it gave no figures."""


def run_part(part: Part, *, quick: bool, peers: bool = True) -> Outcome:
    """Run it, showing what it says on the error output; it never raises for what a part does."""
    argv = [sys.executable, *part.argv, *(part.quick if quick else part.full)]
    argv += part.peers if peers else ()
    print(f"part {part.name}", file=sys.stderr, flush=True)
    began = time.perf_counter()
    try:
        last, code = _said(argv, part.seconds)
        figures = json.loads(last)
        if not isinstance(figures, dict):
            raise CannotMeasure("its last line is no JSON object")
    except (CannotMeasure, ValueError) as error:
        why = "its last line is no JSON" if isinstance(error, ValueError) else str(error)
        outcome = Outcome(_since(began), {}, met=False, why=why)
    else:
        outcome = Outcome(_since(began), figures, met=code == 0)
    told = f"  {outcome.why}" if outcome.why else ""
    print(f"part {part.name}: {outcome.seconds:.0f} s{told}", file=sys.stderr, flush=True)
    return outcome


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 1)


def _said(argv: list[str], seconds: float) -> tuple[str, int]:
    """The last line that a program printed, and its exit code."""
    with tempfile.TemporaryFile("w+") as errors:
        # A group of its own: what it began ends with it when it takes too long.
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
            if process.poll() is None:  # we are interrupted; it would not be, in its own group
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if late.is_set():
            raise CannotMeasure(f"took longer than {seconds:.0f} s")
        if code and not last.startswith("{"):
            errors.seek(0)
            raise CannotMeasure(last_line(errors.read()))
        return last, code


def figure(figures: Mapping[str, Any], path: str) -> float | None:
    """One figure of a part, to four digits; a dot in its name goes deeper."""
    found: Any = figures
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return float(f"{found:.4g}") if isinstance(found, int | float) else None
