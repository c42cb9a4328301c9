"""The overhead of tracing: the same runs with and without it; ends with one JSON object.

First the loop only, with a scripted model and a no-op tool: the CPU time of a turn. Then `evoclaw
up` as a process with an edge, a model server and a collector: the time of a turn with a call on the
edge, and the memory of both processes. Traced and untraced runs alternate, so that other load
affects both.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.support.loop import Table, echo, tool
from tests.support.otlp_collector import Collector, collector
from tests.support.up_process import UpProcess, start_run, up_process, wait_for_state

from evoclaw.core.agent import LoopSettings
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import user
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import AllowAll, Ports, Sink
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import new_run
from evoclaw.core.tools import Effect
from evoclaw.executors.call_steps import TraceCall
from evoclaw.observe.tracing.attributes import TracedRun
from evoclaw.observe.tracing.tracing import open_tracing
from evoclaw.providers.scripted import Scripted, calls, says

ROUNDS, RUNS, TURNS = 15, 40, 20
DELAY = 1.0
"""Seconds after which spans are exported; the default of OpenTelemetry is five."""
SERVED_ROUNDS, SERVED_RUNS, SERVED_TURNS = 3, 10, 8


class TooBusy(Exception):
    """Calls timed out because of other load on the machine."""


async def alone(env: dict[str, str]) -> dict[str, float]:
    """The CPU time of a turn in the loop, in microseconds."""
    os.environ.update(env)
    found: dict[bool, list[float]] = {False: [], True: []}
    async with open_tracing(os.environ, "bench") as tracing:
        assert tracing is not None
        for number in range(ROUNDS * 2):
            traced = bool(number % 2)
            # Another thread exports the spans: its time is counted, too.
            began = time.process_time()
            for run in range(RUNS):
                await _one(f"{number}-{run}", tracing.sink(TracedRun("bench")) if traced else None)
            if traced:
                await asyncio.to_thread(tracing.spans.flush)
            found[traced].append((time.process_time() - began) / RUNS / (TURNS + 1) * 1e6)
    return _compared(found[False], found[True])


async def _one(run_id: str, sink: Sink | None) -> None:
    inner = Table((tool("echo", effect=Effect.READ, resources=()), echo))
    script = Scripted(*(calls(("echo", {"number": n})) for n in range(TURNS)), says("done"))
    ports = Ports(script, inner if sink is None else Pipeline([inner], [TraceCall()]), AllowAll())
    settings = LoopSettings(max_turns=TURNS + 5)
    bus = Bus(run_id, () if sink is None else (sink,))
    state = new_run((user("do it"),), run_id)
    async for _ in recorded(run_loop(state, ports, settings), bus):
        pass
    assert state.turn == TURNS + 1 and not bus.failures


async def served(env: dict[str, str]) -> dict[str, dict[str, float]]:
    """Wall-clock time and CPU time of a turn with a call on an edge, and memory, by process."""
    found: dict[str, dict[bool, list[float]]] = {}
    for number in range(SERVED_ROUNDS * 2):
        traced = bool(number % 2)
        for name, value in (await _patiently(env if traced else {})).items():
            found.setdefault(name, {False: [], True: []})[traced].append(value)
    return {name: _compared(one[False], one[True]) for name, one in found.items()}


async def _patiently(env: dict[str, str]) -> dict[str, float]:
    while True:
        with tempfile.TemporaryDirectory() as folder:
            async with up_process(Path(folder)) as up:
                up.shell.env.update(env)
                try:
                    return await _served(up)
                except TooBusy as problem:
                    print(f"once more: {problem}", file=sys.stderr)


async def _served(up: UpProcess) -> dict[str, float]:
    up.configure()
    (up.workspace / "note.txt").write_text("a note")
    client = await up.start(edge=True)
    await up.wait_online(client)
    lines = "\n".join([f"call edge_call {_call(n)}" for n in range(1, SERVED_TURNS)])
    pids = {"orchestrator": up.pid, "edge": _edge(up.pid)}
    took: list[float] = []
    before: dict[str, float] = {}
    for run in range(SERVED_RUNS + 1):
        if run == 1:  # the first one loads what it needs, and so do the first spans that are sent
            await asyncio.sleep(2 * DELAY)
            before = {name: _seconds(pid) for name, pid in pids.items()}
        view = await wait_for_state(client, await start_run(client, f"{lines}\nsay done"))
        if view["turns"] != SERVED_TURNS:
            raise TooBusy(view["reason"])
        took.append((view["ended_at"] - view["began_at"]) / SERVED_TURNS * 1000)
    turns = SERVED_RUNS * SERVED_TURNS
    found = {"turn_ms": median(took[1:])}
    for name, pid in pids.items():
        found[f"{name}_processor_ms"] = (_seconds(pid) - before[name]) / turns * 1000
        found[f"{name}_mb"] = _megabytes(pid)
    return found


def _call(number: int) -> str:
    params = {"path": "note.txt", "limit": number}
    return json.dumps({"agent_id": "local", "action": "read", "params": params})


def _edge(pid: int) -> int:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if b"\0edge\0" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise RuntimeError(f"process {pid} has no child process that is an edge")


def _megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _seconds(pid: int) -> float:
    """The CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _compared(plain: list[float], traced: list[float]) -> dict[str, float]:
    without, with_ = median(plain), median(traced)
    return {"plain": round(without, 2), "traced": round(with_, 2), "ratio": with_ / without}


async def collect() -> None:
    """Run the collector in its own process, so that its time is not counted."""
    async with collector() as traces:
        print(traces.port, flush=True)
        await asyncio.Event().wait()


async def main() -> None:
    """Measure both."""
    command = (sys.executable, "-m", "bench.traces", "--collect")
    other = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert other.stdout is not None
        traces = Collector()
        traces.port = int(await other.stdout.readline())
        env = {**traces.env, "OTEL_BSP_SCHEDULE_DELAY": str(round(DELAY * 1000))}
        told = {"loop_processor_us": await alone(env)}
        if "--alone" not in sys.argv:
            told |= await served(env)
    finally:
        other.terminate()
        await other.wait()
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    asyncio.run(collect() if "--collect" in sys.argv else main())
