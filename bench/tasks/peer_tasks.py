"""The same tasks by other frameworks, on the same model server, in environments of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.suite.subjects import (
    BENCH,
    ENVS,
    SWITCHES,
    CannotMeasure,
    Subject,
    environment,
    version_of,
)
from bench.tasks.drive import commit, empty, started_files, write_files
from bench.tasks.models import MeasuredModel
from bench.tasks.results import Results, Row
from bench.tasks.task import Ending, Task, claims_success

GRACE_S = 30.0


@dataclass(frozen=True)
class Framework:
    """A peer: the package that is reported, what is installed, and its script."""

    name: str
    package: str
    packages: tuple[str, ...]
    script: str


FRAMEWORKS = (
    Framework("smolagents", "smolagents", ("smolagents[openai]",), "smolagents_task"),
    Framework("pydantic-ai", "pydantic-ai-slim", ("pydantic-ai-slim[openai]",), "pydantic_ai_task"),
)


def measure_peer(
    framework: Framework,
    model: MeasuredModel,
    tasks: Sequence[Task],
    folder: Path,
    results: Results,
    tell: Callable[[str, Row], None],
) -> None:
    """Run these tasks."""
    if shutil.which("bwrap") is None:
        raise CannotMeasure("its commands need a sandbox; install bubblewrap")
    python = environment(f"{framework.package}-tasks", list(framework.packages))
    script = BENCH / "tasks" / "peers" / f"{framework.script}.py"
    about = results.peer(framework.name, model.name)
    about["version"] = version_of(Subject(framework.name, python, script), framework.package)
    for task in tasks:
        row = run_task([str(python), "-P", str(script)], model, task, folder)
        results.store(about["tasks"], task.name, row)
        tell(task.name, row)


def run_task(command: list[str], model: MeasuredModel, task: Task, folder: Path) -> Row:
    """One task in a process of the framework."""
    work = folder / "work"
    empty(work)
    commit(work, task.commits)
    write_files(work, task.files)
    asked = {
        "prompt": task.prompts[0],
        "folder": str(work),
        "model": model.name,
        "base_url": model.base_url,
        "turns": task.turns,
    }
    started = time.monotonic()
    found = run_process(command, json.dumps(asked), task.seconds + GRACE_S)
    answer = found["answer"]
    why = found["problem"] or task.judge(
        Ending(work, (answer,), start=started_files(task), questions=0)
    )
    stop = "error" if found["problem"] else "completed"
    return {
        "digest": task.digest(),
        "solved": not why,
        "why": why,
        "wrong_done": bool(why) and claims_success(stop, answer),
        "calls": found["calls"],
        "errors": found["errors"],
        "tokens": found["tokens"],
        "seconds": round(time.monotonic() - started, 1),
    }


def run_process(command: list[str], text: str, seconds: float) -> Row:
    """What the last line of a process says; the process and its children end in any case."""
    env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    peers = str(BENCH / "tasks" / "peers")
    env |= SWITCHES | {"PYTHONPATH": peers, "HOME": str(ENVS), "PYTHONWARNINGS": "ignore"}
    nothing: Row = {"answer": "", "tokens": 0, "calls": 0, "errors": 0}
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(text, timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {**nothing, "problem": f"took longer than {seconds:.0f} s"}
    try:
        return json.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        lines = err.strip().splitlines() or ["no output"]
        return {**nothing, "problem": lines[-1][:200]}
