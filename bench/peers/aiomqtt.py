"""aiomqtt: a round trip through a broker, QoS 1 both ways; asks and echoes in two processes.

python aiomqtt.py PORT SECONDS
"""

import asyncio
import json
import socket
import subprocess
import sys
import time

import aiomqtt

PING, PONG = "bench/aiomqtt/ping", "bench/aiomqtt/pong"
BODY = b"x" * 500
MANY = 64
AT_ONCE = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
"""Without it a round trip takes 90 ms: each side waits for the other's acknowledgement."""


async def echo(port: int) -> None:
    """Send back what comes, until killed."""
    sending: set[asyncio.Task] = set()
    async with aiomqtt.Client("127.0.0.1", port, socket_options=AT_ONCE) as client:
        await client.subscribe(PING, qos=1)
        print("ready", flush=True)
        async for message in client.messages:
            # Its publish waits until the broker has it; nobody else is to wait for that.
            task = asyncio.create_task(client.publish(PONG, message.payload, qos=1))
            sending.add(task)
            task.add_done_callback(sending.discard)


async def pace(trip, at_once: int, seconds: float) -> tuple[float, float]:
    """Round trips a second with so many in flight, and µs of this process's work for each."""
    done = 0

    async def one(end: float) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await trip()
            done += 1

    began, worked = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one(began + seconds))
    work = time.process_time() - worked
    return done / (time.perf_counter() - began), 1e6 * work / done


async def ask(port: int, seconds: float) -> dict[str, float]:
    """How fast it goes with one and with many in flight."""
    waiting: dict[bytes, asyncio.Future] = {}
    count = 0
    async with aiomqtt.Client("127.0.0.1", port, socket_options=AT_ONCE) as client:
        await client.subscribe(PONG, qos=1)

        async def listen() -> None:
            async for message in client.messages:
                waiting.pop(message.payload[:8]).set_result(None)

        async def trip() -> None:
            nonlocal count
            count += 1
            key = count.to_bytes(8, "big")
            back = waiting[key] = asyncio.get_running_loop().create_future()
            await client.publish(PING, key + BODY, qos=1)
            await back

        listening = asyncio.create_task(listen())
        await pace(trip, 1, 0.3)
        one, many = await pace(trip, 1, seconds), await pace(trip, MANY, seconds)
        listening.cancel()
    return {"one": one[0], "one_us": one[1], "many": many[0], "many_us": many[1]}


def main(port: int, seconds: float) -> None:
    argv = [sys.executable, "-P", __file__, "echo", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as far:
        try:
            assert far.stdout is not None
            assert far.stdout.readline() == "ready\n"
            found = asyncio.run(ask(port, seconds))
        finally:
            far.kill()
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        asyncio.run(echo(int(sys.argv[2])))
    else:
        main(int(sys.argv[1]), float(sys.argv[2]))
