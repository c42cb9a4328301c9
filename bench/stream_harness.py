"""The harness of the streaming rows: CPU time of the client process for one reply of 500 chunks.

A subject is a file with `clients`, which maps a dialect to `connect(address)`, an async context
manager that gives `ask()`: a coroutine function that asks once and returns the text.
"""

import asyncio
import gc
import json
import sys
import time

EXPECTED = "word " * 500
WARM, MOST, SECONDS = 3, 10, 1.0


async def _measure(connect, address: str) -> list[float]:
    samples: list[float] = []
    async with connect(address) as ask:
        end = time.perf_counter() + SECONDS
        while len(samples) < WARM + MOST and (len(samples) <= WARM or time.perf_counter() < end):
            gc.collect()
            begin = time.process_time()
            text = await ask()
            samples.append((time.process_time() - begin) * 1e3)
            if text != EXPECTED:
                raise SystemExit(f"a reply of {len(text)} characters, not {len(EXPECTED)}")
    return samples[WARM:]


def main(clients) -> None:
    """Measure one dialect against the server at the address; print one line of JSON."""
    dialect, address = sys.argv[1:3]
    samples = asyncio.run(_measure(clients[dialect], address))
    print(json.dumps({f"stream_500_{dialect}": samples}))
