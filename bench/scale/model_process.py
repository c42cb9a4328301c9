"""A model in a process of its own that writes down who asked it for what.

`python -m bench.scale.model_process LOG` serves until it is ended and prints its port. An orchestrator is
known by the address it was given: `http://127.0.0.1:PORT/NAME/v1`.
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
"""What a run is known by: it stands in the marks that its calls leave."""


class Counted(ModelServer):
    """Does what it is told, and keeps count."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """`POST /NAME/v1/chat/completions`."""
        asked = _asked(await request.json(), VERBS)
        key = KEY.search(asked.said)
        line = {
            "at": time.time(),
            "who": request.match_info["who"],
            "key": key[0] if key else "",
            "turn": asked.turn + 1,
        }
        os.write(self._log, json.dumps(line).encode() + b"\n")
        try:
            return await super().complete(request)
        finally:
            self.asked.clear()


async def main() -> None:
    """Serve until ended."""
    server = Counted(Path(sys.argv[1]))
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/{who}/v1/chat/completions", server.complete)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
