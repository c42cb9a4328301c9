"""The CPU time of `evoclaw up` until it answers: all its processes together, by process.

Each start has a fresh home folder and free ports. Bytecode is cached first, as an installation has
it. Two moments are measured: the service answers a request; the edge on this machine is online.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

START_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.005


def cpu_by_process(root: int) -> dict[str, float]:
    """The CPU seconds of a process and its descendants that run, by name."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: dict[str, float] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        try:
            name = _name(Path(f"/proc/{pid}/cmdline").read_bytes().decode())
            # More precise than `stat`, which counts in hundredths of a second.
            tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
            seconds = sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
        except OSError:
            continue
        found[name] = round(found.get(name, 0.0) + seconds, 3)
    return found


def _name(command: str) -> str:
    words = command.split("\0")
    return next((name for name in ("up", "edge") if name in words), Path(words[0]).name)


def started(*options: str) -> dict[str, Any]:
    """Start `evoclaw up` once, and stop it."""
    with tempfile.TemporaryDirectory(prefix="startup-") as name:
        folder = Path(name)
        env = {key: value for key, value in os.environ.items() if not key.startswith("EVOCLAW_")}
        env |= {"HOME": name}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        log, login = folder / "up.log", folder / ".evoclaw" / "api.json"
        argv = (sys.executable, "-m", "evoclaw", "up", "--api-port", "0", "--name", "local")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*argv, *options], cwd=folder, env=env, stdout=output, stderr=output
            )
        try:
            _wait(process, log, login.exists)
            url = json.loads(login.read_bytes())["url"]
            with urllib.request.urlopen(f"{url}/health/live", timeout=START_TIMEOUT_S):
                answers = cpu_by_process(process.pid)
            if "--no-edge" in options:
                return {"answers": answers}
            _wait(process, log, lambda: b"edge local: online" in log.read_bytes())
            return {"answers": answers, "edge_online": cpu_by_process(process.pid)}
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)


def _wait(process: subprocess.Popen[bytes], log: Path, condition: Any) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"`evoclaw up` did not start: {log.read_text(errors='replace')}")
        time.sleep(POLL_INTERVAL_S)


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--starts", type=int, default=5, help="Starts that are measured [5]")
    count = parser.parse_args().starts
    started()  # compiles the modules and fills the page cache
    results: dict[str, Any] = {}
    for name, options in (("with_edge", ()), ("without_edge", ("--no-edge",))):
        found = [started(*options) for _ in range(count)]
        for moment in found[0]:
            totals = [sum(start[moment].values()) for start in found]
            middle = sorted(found, key=lambda start: sum(start[moment].values()))[count // 2]
            results[f"{name}_{moment}"] = {
                "cpu_s": round(median(totals), 3),
                "least_cpu_s": round(min(totals), 3),
                "by_process": middle[moment],
            }
            print(f"{name}, {moment}: {json.dumps(results[f'{name}_{moment}'])}", flush=True)
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
