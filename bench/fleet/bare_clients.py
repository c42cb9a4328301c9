"""Bare MQTT clients in one process, each with its own topic: each echoes the messages it receives.

python -m bench.fleet.bare_clients PORT FIRST COUNT

It prints `ready` when all of them have subscribed. It imports nothing of EvoClaw: the cost of this
process is the floor for an edge.
"""

import asyncio
import sys
from contextlib import AsyncExitStack

from bench.fleet.bare_client import connected

ECHO_TOPIC = "bench/back"


def topic_of(number: int) -> str:
    """The topic that a client subscribes to."""
    return f"bench/to/{number}"


async def echo(client, number: int) -> None:
    """Echo messages; returns when the broker has acknowledged the subscription."""
    subscribed = asyncio.get_running_loop().create_future()

    def on_message(_client: object, _topic: str, payload: bytes, _qos: int, _more: object) -> int:
        client.publish(ECHO_TOPIC, payload, qos=1)
        return 0

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.done() or subscribed.set_result(None)
    client.subscribe(topic_of(number), qos=1)
    await subscribed


async def main() -> None:
    """Serve until killed."""
    port, first, count = (int(argument) for argument in sys.argv[1:])
    async with AsyncExitStack() as stack:
        for number in range(first, first + count):
            client = await stack.enter_async_context(connected(f"bare-{number}", port))
            await echo(client, number)
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
