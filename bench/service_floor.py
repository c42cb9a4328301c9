"""The floor of `bench.service`: a bare server that sends events to watchers, and nothing else.

It prints its port. `GET /RUN/COUNT/PAUSE` streams COUNT events of that run, with a pause after
each, the same events to all its watchers; a run starts with its first watcher. No model, no store,
no rules, no HTTP library.
"""

import asyncio
import json
import time

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
GATHER = 0.2
"""Seconds in which the other watchers of a run may connect before it starts."""


class Floor:
    """The watchers of each run."""

    def __init__(self) -> None:
        self.runs: dict[str, list[asyncio.StreamWriter]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Accept one watcher."""
        head = await reader.readuntil(b"\r\n\r\n")
        run, count, pause = head.split()[1].decode().strip("/").split("/")
        writer.write(HEAD)
        if run not in self.runs:
            self.runs[run] = []
            self.tasks.add(asyncio.create_task(self.tell(run, int(count), float(pause))))
        self.runs[run].append(writer)

    async def tell(self, run: str, count: int, pause: float) -> None:
        """Send the events of one run to all its watchers."""
        await asyncio.sleep(GATHER)
        watchers = self.runs[run]
        for seq in range(1, count + 1):
            event = {"type": "text_delta", "text": f"word{seq} "}
            record = {"run_id": run, "seq": seq, "at": time.time(), "event": event}
            data = f"id: {seq}\nevent: text_delta\ndata: {json.dumps(record)}\n\n".encode()
            for writer in watchers:
                writer.write(data)
            await asyncio.gather(*(writer.drain() for writer in watchers))
            if pause:
                await asyncio.sleep(pause)
        for writer in watchers:
            writer.close()


async def main() -> None:
    """Serve on a free port of the loopback until ended."""
    server = await asyncio.start_server(Floor().answer, "127.0.0.1", 0, backlog=1_000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
