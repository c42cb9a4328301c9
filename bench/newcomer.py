"""The first five minutes: start times, a newcomer's first answer, the dashboard's first paint.

Every command is a fresh process, with bytecode cached as an installation has it. The model is a
scripted server on this machine that answers at once, so all seconds are EvoClaw's own.
`--page` writes docs/start-figures.md. Ends with one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from tests.page.browsing import chromium
from tests.support.command_line import Shell
from tests.support.model_server import ModelServer, model_server
from tests.support.terminal import terminal
from tests.support.up_process import UpProcess, up_process

PAGE = Path(__file__).parents[1] / "docs" / "start-figures.md"
PROMPTS = ("Number [1]: ", "Folder [", "Service, y or n [n]: ", "Question [")
QUESTION, ANSWER = "What is in this folder?", "Nothing yet."
TIMEOUT_S = 120.0
PAINT = """async () => {
  const paints = () => performance.getEntriesByName("first-contentful-paint");
  while (!paints().length) await new Promise((resolve) => setTimeout(resolve, 5));
  return paints()[0].startTime;
}"""


def command(shell: Shell, *arguments: str) -> dict[str, float]:
    """One command from its start to its end: seconds, and CPU seconds of it and its children."""
    started = time.perf_counter()
    process = subprocess.Popen(
        (sys.executable, "-m", "evoclaw", *arguments),
        cwd=shell.workspace,
        env=shell.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # scheduled as in a terminal of its own
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"evoclaw {' '.join(arguments)}: {said.decode(errors='replace')}")
    return {"seconds": seconds, "cpu_s": usage.ru_utime + usage.ru_stime}


async def chat(shell: Shell) -> dict[str, float]:
    """`evoclaw chat` until it is ready for a message."""
    started = time.perf_counter()
    async with terminal(shell, "chat") as seen:
        await seen.until("ready")
        return {"seconds": time.perf_counter() - started}


async def up(folder: Path) -> dict[str, float]:
    """`evoclaw up` in an empty home until it answers, and until its edge is online."""
    async with up_process(folder) as service:
        started = time.perf_counter()
        await service.launch(edge=True)
        owner = await service.wait_ready()
        await owner.get("/health/live")
        answers = time.perf_counter() - started
        await service.wait_online(owner)
        online = time.perf_counter() - started
        await service.stop()
    return {"seconds": answers, "edge_online_s": online}


async def first_answer(folder: Path) -> dict[str, float]:
    """`evoclaw` in an empty home until the first answer; every proposal is accepted with Enter."""
    async with newcomer(folder) as (shell, _):
        started = time.perf_counter()
        async with terminal(shell) as seen:
            for shown in PROMPTS:
                await seen.expect(shown)
                seen.type("\n")
            await seen.expect(ANSWER)
            seconds = time.perf_counter() - started
            await seen.wait_exit()
    return {"seconds": seconds, "inputs": len(PROMPTS)}


@asynccontextmanager
async def newcomer(folder: Path) -> AsyncGenerator[tuple[Shell, ModelServer]]:
    """An empty home, an empty folder, and a model."""
    home, workspace = folder / "home", folder / "work"
    home.mkdir()
    workspace.mkdir()
    async with model_server() as models:
        models.scripts["Say hello in one word."] = "say Hello!"
        models.scripts[QUESTION] = f"say {ANSWER}"
        # No other model of this machine.
        yield Shell(home, workspace, {"OLLAMA_HOST": "127.0.0.1:9", **models.env}), models


async def first_paint(service: UpProcess) -> dict[str, float]:
    """The dashboard in a new Chromium: its first paint, and when it shows live data."""
    ran = await service.shell.type("page")
    async with chromium() as browser:
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        started = time.perf_counter()
        await page.goto(ran.out.strip())
        paint = await page.evaluate(PAINT)
        await page.wait_for_selector("#link[data-state=open]", timeout=TIMEOUT_S * 1000)
        live = time.perf_counter() - started
        await page.close()
    return {"seconds": paint / 1000, "live_s": live}


async def repeated(
    count: int, measure: Callable[[Path], Awaitable[dict[str, float]]]
) -> dict[str, float]:
    """The medians of several rounds, each in a folder of its own."""
    rounds: list[dict[str, float]] = []
    for _ in range(count):
        with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
            rounds.append(await measure(Path(folder)))
    return {
        **{key: round(median(found[key] for found in rounds), 3) for key in rounds[0]},
        "least_s": round(min(found["seconds"] for found in rounds), 3),
    }


async def measured(rounds: int) -> dict[str, Any]:
    """Everything, in the order in which a newcomer meets it."""
    results: dict[str, Any] = {}

    async def note(name: str, measure: Callable[[Path], Awaitable[dict[str, float]]]) -> None:
        results[name] = await repeated(rounds, measure)
        print(f"{name}: {json.dumps(results[name])}", flush=True)

    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        async with up_process(Path(folder)) as service:
            service.shell.env["PYTHONDONTWRITEBYTECODE"] = ""
            await service.start(edge=True)
            shell = service.shell

            def typed(*arguments: str) -> Callable[[Path], Awaitable[dict[str, float]]]:
                return lambda _: asyncio.to_thread(command, shell, *arguments)

            command(shell, "status")  # fills the page cache
            await note("--version", typed("--version"))
            await note("--help", typed("--help"))
            await note("status", typed("status"))
            await note("run", typed("run", "say Hello."))
            await note("chat", lambda _: chat(shell))
            await note("dashboard", lambda _: first_paint(service))
            await service.stop()
    await note("up", up)
    await note("first answer", first_answer)
    return results


ROWS = (
    ("`evoclaw --version`", "--version", "seconds"),
    ("`evoclaw --help`", "--help", "seconds"),
    ("`evoclaw status`, of a running service", "status", "seconds"),
    ("`evoclaw run`, to the answer and the end", "run", "seconds"),
    ("`evoclaw chat`, until you can type", "chat", "seconds"),
    ("`evoclaw up` in an empty home, until it answers", "up", "seconds"),
    ("… until its edge is online", "up", "edge_online_s"),
    ("the dashboard in Chromium: first paint", "dashboard", "seconds"),
    ("… until it shows live data", "dashboard", "live_s"),
    ("`evoclaw` in an empty home, to the first answer", "first answer", "seconds"),
)


def page(results: dict[str, Any], rounds: int) -> str:
    """The page of these figures."""
    lines = [
        f"| {name} | {results[key][field]:.2f} | "
        + (f"{results[key]['cpu_s']:.2f} |" if "cpu_s" in results[key] else "– |")
        for name, key, field in ROWS
    ]
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {sys.version.split()[0]}"
    load = os.getloadavg()[0]
    inputs = results["first answer"]["inputs"]
    return "\n".join(
        (
            "<!-- Generated by bench/newcomer.py: run `make newcomer ARGS=--page`. -->",
            "",
            "# Start and first use",
            "",
            "How long a newcomer waits. Every command is a fresh process with cached bytecode. A",
            "scripted model server on the same machine answers at once, so all seconds are",
            f"EvoClaw's own. Medians of {rounds} rounds.",
            "",
            "| | seconds | CPU seconds |",
            "| --- | --- | --- |",
            *lines,
            "",
            f"A newcomer in an empty home types Enter {inputs:.0f} times until the first answer:",
            "for the model that EvoClaw found (it is tested with a real request), the folder, no",
            "service, and the proposed question. Without a model, pasting a key is one input more.",
            "",
            f"Measured on {datetime.now(UTC):%Y-%m-%d}: {machine}, load average {load:.1f}.",
            "The more the load exceeds the number of cores, the longer everything takes.",
            "",
        )
    )


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="Rounds that are measured [5]")
    parser.add_argument("--page", action="store_true", help="Write docs/start-figures.md")
    options = parser.parse_args()
    results = asyncio.run(measured(options.rounds))
    if options.page:
        PAGE.write_text(page(results, options.rounds), encoding="utf-8")
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
