"""The benchmark harness of the loop rows: the same script and clock for EvoClaw, floor and peers.

A subject is a file with `build()`, which imports what it needs and returns `prepare(script)`, which
prepares one run (not timed) and returns `start()` (timed): a coroutine function, or a plain
function if the subject has no async interface. Two more functions are optional. `describe()`
returns a function that creates a tool from another function and returns its JSON schema.
`stored(folder)` is an async context manager that yields `prepare` for runs that are stored on disk
while they run, and `kept()`, which returns the number of stored messages of the last run. This
module imports only a little of the standard library, because its imports are not counted in the
import rows.
"""

import gc
import json
import sys
import time

TURNS, BEYOND = 20, 30
"""Turns of a run, and of a run with more turns after the twentieth."""
PARALLEL = (10, 5)
RUNS, RUN_TURNS = 1_000, 2
SHORT, LONG = 100, 1_000
counter = {"calls": 0}


def add_up(a: int, b: int) -> int:
    """The work of the tool: count the call, so that no run can skip it, and add."""
    counter["calls"] += 1
    return a + b


class Script:
    """The replies of the fake model: `turns` replies with `width` calls each, then a final text."""

    def __init__(self, turns: int, width: int = 1, waits: bool = False, whole: bool = True) -> None:
        self.turns, self.width = turns, width
        self.whole = whole
        """Whether the bytes of the whole request are assembled, which grow with the run."""
        self.waits = waits
        """Whether the model yields before each reply, so that concurrent runs interleave."""
        self.stamps: list[float] = []
        self._replies = iter([self._calls(turn) for turn in range(turns)])

    def _calls(self, turn: int) -> list[tuple[str, dict, str]]:
        asked = [{"a": turn, "b": index} for index in range(self.width)]
        return [(f"call_{turn}_{i}", args, json.dumps(args)) for i, args in enumerate(asked)]

    def reply(self) -> list[tuple[str, dict, str]]:
        """The next calls as (id, arguments, the same as JSON); none means the final text."""
        self.stamps.append(time.perf_counter())
        return next(self._replies, [])


async def _timed(prepare, scripts: list[Script], before=gc.collect) -> float:
    """Seconds that these runs take concurrently; fails if a call was skipped."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor
    from inspect import iscoroutinefunction

    starts = [prepare(script) for script in scripts]
    counter["calls"] = 0
    before()
    begin = time.perf_counter()
    if len(starts) == 1 and not iscoroutinefunction(starts[0]):
        starts[0]()
    elif not iscoroutinefunction(starts[0]):
        with ThreadPoolExecutor(len(starts)) as pool:
            list(pool.map(lambda start: start(), starts))
    elif len(starts) == 1:
        await starts[0]()
    else:
        await asyncio.gather(*(start() for start in starts))
    seconds = time.perf_counter() - begin
    asked = sum(script.turns * script.width for script in scripts)
    if counter["calls"] != asked:
        raise SystemExit(f"{counter['calls']} calls ran instead of {asked}")
    return seconds


async def _turn(prepare) -> float:
    return await _timed(prepare, [Script(TURNS)]) / TURNS * 1e6


async def _parallel_turn(prepare) -> float:
    turns, width = PARALLEL
    return await _timed(prepare, [Script(turns, width)]) / turns * 1e6


async def _concurrent_runs(prepare) -> float:
    scripts = [Script(RUN_TURNS, waits=True) for _ in range(RUNS)]
    return RUNS * RUN_TURNS / await _timed(prepare, scripts)


async def _costs(prepare, script: Script) -> list[float]:
    """The seconds of each turn of a run."""
    await _timed(prepare, [script])
    return [after - before for before, after in zip(script.stamps, script.stamps[1:], strict=False)]


async def _turn_20(prepare) -> float:
    from statistics import median

    return median((await _costs(prepare, Script(BEYOND)))[15:25]) * 1e6


async def _flatness(prepare, turns: int, whole: bool = True) -> float:
    from statistics import median

    costs = await _costs(prepare, Script(turns, whole=whole))
    return median(costs[turns - 10 : turns]) / median(costs[15:25])


async def _flatness_100(prepare) -> float:
    return await _flatness(prepare, SHORT)


async def _flatness_1000(prepare) -> float:
    return await _flatness(prepare, LONG)


async def _flatness_1000_loop(prepare) -> float:
    return await _flatness(prepare, LONG, whole=False)


ROWS = {
    # name: (measure, warm-ups, maximum number of samples, maximum seconds)
    "turn": (_turn, 3, 200, 0.6),
    "turn_20": (_turn_20, 3, 200, 0.6),
    "parallel_turn": (_parallel_turn, 2, 200, 0.6),
    "flatness_100": (_flatness_100, 0, 5, 0.6),
    "flatness_1000": (_flatness_1000, 0, 5, 0.6),
    "flatness_1000_loop": (_flatness_1000_loop, 0, 5, 0.6),
    "concurrent_runs": (_concurrent_runs, 0, 5, 0.6),
}


async def _measure(prepare, rows: list[str]) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    for row in rows:
        measure, warm, most, seconds = ROWS[row]
        for _ in range(warm):
            await measure(prepare)
        end = time.perf_counter() + seconds
        samples[row] = [await measure(prepare)]
        while len(samples[row]) < most and time.perf_counter() < end:
            samples[row].append(await measure(prepare))
    return samples


def resident_mb() -> float:
    """This process's memory, in MB."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - pathlib would be counted as import cost
        return int(file.read().split()[1]) * 4096 / 1e6


def _import(build) -> dict[str, list[float]]:
    memory, begin = resident_mb(), time.perf_counter()
    kept = build()(Script(1))
    seconds = time.perf_counter() - begin
    return {"import_s": [seconds], "import_mb": [resident_mb() - memory]} if kept else {}


async def _memory(prepare) -> dict[str, list[float]]:
    """The peak memory of 1,000 concurrent runs minus the memory before their start."""
    await _timed(prepare, [Script(1)])
    ready: list[float] = []

    def before() -> None:
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123
            file.write("5")  # reset the peak
        ready.append(_kilobytes("VmRSS"))

    await _timed(prepare, [Script(RUN_TURNS, waits=True) for _ in range(RUNS)], before)
    return {"run_kb": [(_kilobytes("VmHWM") - ready[0]) / RUNS]}


def _kilobytes(name: str) -> float:
    with open("/proc/self/status") as file:  # noqa: PTH123
        found = next(line for line in file if line.startswith(name))
    return int(found.split()[1]) * 1024 / 1000


def search(path: str, pattern: str, limit: int = 10, deep: bool = False) -> str:
    """Find lines that match a pattern.

    Args:
        path: Where to look.
        pattern: What to look for.
        limit: How many lines at most.
        deep: Whether to look in folders below.
    """
    return f"{path} {pattern} {limit} {deep}"


def _fresh():
    """`search` as a new function, so that caches by function do not help."""
    from types import FunctionType

    made = FunctionType(search.__code__, globals(), "search", search.__defaults__)
    made.__annotations__, made.__doc__ = dict(search.__annotations__), search.__doc__
    return made


def _schema(describe) -> dict[str, list[float]]:
    """Microseconds to create a tool with its schema from `search`; checks the parameters."""
    make = describe()
    samples: list[float] = []
    end = time.perf_counter() + 0.5
    while len(samples) < 20 or (len(samples) < 2_000 and time.perf_counter() < end):
        function = _fresh()
        begin = time.perf_counter()
        schema = make(function)
        samples.append((time.perf_counter() - begin) * 1e6)
    missing = [name for name in search.__annotations__ if f"'{name}': {{" not in str(schema)]
    if missing != ["return"]:
        raise SystemExit(f"the schema lacks the parameters {missing}")
    return {"tool_schema": samples[5:]}


async def _stored(stored) -> dict[str, list[float]]:
    """Microseconds per turn of a run that is stored; fails if messages were not stored."""
    from tempfile import TemporaryDirectory

    samples: list[float] = []
    with TemporaryDirectory(prefix="bench-") as folder:
        async with stored(folder) as (prepare, kept):
            end = time.perf_counter() + 2.0
            while len(samples) < 3 or (len(samples) < 200 and time.perf_counter() < end):
                samples.append(await _turn(prepare))
            stored_messages = await kept()
    if stored_messages < 2 * TURNS + 2:
        raise SystemExit(f"{stored_messages} messages were stored instead of {2 * TURNS + 2}")
    return {"stored_turn": samples[1:]}


def main(build, describe=None, stored=None) -> None:
    """Measure what the command line names; print one line of JSON."""
    what = sys.argv[1]
    if what == "import":
        samples = _import(build)
    elif what == "schema":
        samples = _schema(describe)
    else:
        import asyncio

        if what == "memory":
            work = _memory(build())
        elif what == "stored":
            work = _stored(stored)
        else:
            work = _measure(build(), what.split(","))
        samples = asyncio.run(work)
    print(json.dumps(samples))
