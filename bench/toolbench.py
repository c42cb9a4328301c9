"""Compare grep and glob with ripgrep and find, and measure the dispatch of one call.

The last line is the result as JSON.
"""

import argparse
import asyncio
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import msgspec

from evoclaw.core.agent import LoopSettings
from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.calls import Turn, judge, perform, prepare
from evoclaw.core.chain import Chain
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import CallFinished
from evoclaw.core.messages import ToolCall, ToolResult
from evoclaw.core.ports import Ports
from evoclaw.core.tools import Call
from evoclaw.core.toolset import Toolset
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.permissions import Permissions
from evoclaw.providers.scripted import Scripted
from evoclaw.tools.define import tool
from evoclaw.tools.search import glob, grep

MAX_RATIO, MAX_DISPATCH_US = 3.0, 100.0
NEEDLE = "needle_in_haystack"
GREPS = {"literal": NEEDLE, "regex": r"needle_\w+_haystack\b"}


def plant(root: Path, files: int) -> None:
    """Create a tree of text files, one in five hundred with a match."""
    chance = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(3, 9))) for _ in range(5_000)]
    for number in range(files):
        folder = root / f"d{number // 1000}" / f"e{number // 50 % 20}"
        if number % 50 == 0:
            folder.mkdir(parents=True)
        lines = [" ".join(chance.choices(words, k=10)) for _ in range(40)]
        if chance.random() < 0.002:
            lines.insert(5, f"a {NEEDLE} here")
        name = f"f{number % 50}.{'py' if number % 3 else 'txt'}"
        (folder / name).write_text("\n".join(lines))


def took(argv: list[str], root: Path) -> float:
    """The seconds that a program takes."""
    began = time.perf_counter()
    subprocess.run(argv, cwd=root, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """The seconds that something takes."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def searches(root: Path, rounds: int) -> dict[str, list[float]]:
    """Measure EvoClaw's tools and the programs one after the other, for some rounds."""
    executor = LocalExecutor([glob, grep], files=LocalFiles(root))

    async def use(bound: BoundTool, **given: object) -> ToolResult:
        arguments = {**given, "timeout_ms": 30_000, "limit": 10_000}
        call = Call("c", bound.tool, arguments, "r.1.0.1", 30)
        result = await executor.execute(call, lambda text: None)
        assert result.details["complete"], result.text
        return result

    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, pattern in GREPS.items():
            ours = await timed(lambda pattern=pattern: use(grep, pattern=pattern))
            found.setdefault(f"grep_{name}", []).append(ours)
            found.setdefault(f"rg_{name}", []).append(took(["rg", "-n", pattern], root))
        found.setdefault("glob", []).append(await timed(lambda: use(glob, pattern="f7.*")))
        found.setdefault("find", []).append(took(["find", ".", "-name", "f7.*"], root))
    return found


@tool("file_read", effect="read", resources=())
async def nothing(text: str) -> str:
    """Do nothing."""
    return text


async def dispatch(calls: int) -> float:
    """Microseconds from a model's tool call to a recorded result, for a no-op tool."""
    executor = LocalExecutor([nothing])
    policy = Chain((Permissions(frozenset({"file_read"})), Autonomy(Level.READ_ONLY)))
    ports = Ports(Scripted(), executor, policy)
    tools = Toolset.of(executor.tools())
    asked = ToolCall("c1", "nothing", '{"text": "something"}')
    encoder = msgspec.json.Encoder()

    async def once() -> None:
        call = prepare(asked, tools, request_id="r.1.0.1")
        assert isinstance(call, Call)
        turn = Turn(ports, LoopSettings(), tools, Deadline())
        await judge(call, turn)
        encoder.encode(CallFinished(await perform(call, turn, lambda event: None)))

    for _ in range(calls // 10):
        await once()
    began = time.perf_counter()
    for _ in range(calls):
        await once()
    return 1e6 * (time.perf_counter() - began) / calls


async def measure(files: int, rounds: int) -> dict[str, float | bool]:
    """Everything."""
    figures: dict[str, float | bool] = {"files": files}
    if shutil.which("rg") is None:
        sys.exit("ripgrep is not installed. Install it: apt-get install ripgrep")
    with tempfile.TemporaryDirectory(prefix="toolbench-") as name:
        plant(Path(name), files)
        await searches(Path(name), 1)
        found = await searches(Path(name), rounds)
    middle = {name: median(times) for name, times in found.items()}
    for name, times in found.items():
        print(f"{name:14} " + " ".join(f"{1000 * one:7.1f}" for one in times) + "  ms")
    ratios = {f"grep_{name}_to_rg": middle[f"grep_{name}"] / middle[f"rg_{name}"] for name in GREPS}
    ratios["glob_to_find"] = middle["glob"] / middle["find"]
    figures |= {f"{name}_ms": round(1000 * seconds, 1) for name, seconds in middle.items()}
    figures |= {name: round(ratio, 2) for name, ratio in ratios.items()}
    figures["dispatch_us"] = round(median([await dispatch(5_000) for _ in range(rounds)]), 1)
    slow = [name for name, ratio in ratios.items() if ratio > MAX_RATIO]
    figures["met"] = not slow and figures["dispatch_us"] < MAX_DISPATCH_US
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    figures = asyncio.run(measure(options.files, options.rounds))
    print(json.dumps(figures), flush=True)
    sys.exit(int(not figures["met"]))


if __name__ == "__main__":
    main()
