"""Bare MQTT clients in one process, each on a topic of its own: what it is sent it sends back.

python -m bench.fleet.bare_clients PORT FIRST COUNT

It says `ready` when all of them have subscribed. It imports nothing of ours: what such a process
costs is the floor of what an edge does.
"""

import asyncio
import sys
from contextlib import AsyncExitStack

from bench.fleet.bare_client import connected

BACK = "bench/back"


def topic_of(number: int) -> str:
    """Where a client listens."""
    return f"bench/to/{number}"


async def echo(client, number: int) -> None:
    """Send back what comes; returns when the broker has taken the subscription."""
    taken = asyncio.get_running_loop().create_future()

    def back(_client: object, _topic: str, payload: bytes, _qos: int, _more: object) -> int:
        client.publish(BACK, payload, qos=1)
        return 0

    client.on_message = back
    client.on_subscribe = lambda *_: taken.done() or taken.set_result(None)
    client.subscribe(topic_of(number), qos=1)
    await taken


async def main() -> None:
    """Be there until killed."""
    port, first, count = (int(one) for one in sys.argv[1:])
    async with AsyncExitStack() as stack:
        for number in range(first, first + count):
            client = await stack.enter_async_context(connected(f"bare-{number}", port))
            await echo(client, number)
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
