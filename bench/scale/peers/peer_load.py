"""The load of a peer in its own environment: runs of two replies and one call, several at a time.

A script gets the plan as JSON, prints `ready`, starts at the first line on its standard input, and
prints the number of turns and the seconds as JSON. Only the standard library is imported here.
"""

import asyncio
import itertools
import json
import sys
import time

TURNS = 2
WARM_UP_RUNS = 4


async def run_load(run, plan):
    """Run `run(number)` until the time is over; the first runs are not measured."""
    numbers = itertools.count()
    for _ in range(WARM_UP_RUNS):
        await run(next(numbers))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    started, ended = time.perf_counter(), 0

    async def work():
        nonlocal ended
        while time.perf_counter() - started < plan["seconds"]:
            await run(next(numbers))
            ended += 1

    await asyncio.gather(*(work() for _ in range(plan["at_once"])))
    seconds = time.perf_counter() - started
    print(json.dumps({"turns": ended * TURNS, "seconds": seconds}), flush=True)


def plan():
    """The plan on the command line: `url`, `seconds`, `at_once`, `process`."""
    return json.loads(sys.argv[1])


def words(count=50):
    """A reply of so many words."""
    return " ".join(f"word{number}" for number in range(count))
