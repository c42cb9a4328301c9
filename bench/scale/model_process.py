"""A model server in its own process that logs each request with the orchestrator that sent it.

`python -m bench.scale.model_process LOG` prints its port and serves until it is killed. The base
URL identifies the orchestrator: `http://127.0.0.1:PORT/NAME/v1`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path

from aiohttp import web
from tests.support.model_server import VERBS, ModelServer, _asked

KEY = re.compile(r"k[0-9a-f]{10}(?:s\d)?(?=\.)")
"""The key of a run: the prefix of the marks that its calls write."""


class LoggingModelServer(ModelServer):
    """The scripted model server, with a log of its requests."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """`POST /NAME/v1/chat/completions`."""
        asked = _asked(await request.json(), VERBS)
        key = KEY.search(asked.said)
        line = {
            "at": time.time(),
            "orchestrator": request.match_info["orchestrator"],
            "key": key[0] if key else "",
            "turn": asked.turn + 1,
        }
        os.write(self._log, json.dumps(line).encode() + b"\n")
        try:
            return await super().complete(request)
        finally:
            self.asked.clear()


async def main() -> None:
    """Serve until killed."""
    server = LoggingModelServer(Path(sys.argv[1]))
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/{orchestrator}/v1/chat/completions", server.complete)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
