"""A man in the middle between a real edge and the broker of a real service gains nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.seat import seat
from tests.support.waiting import until

pytestmark = pytest.mark.process


async def test_a_command_rewritten_on_its_way_to_an_edge_is_refused_and_the_user_is_told(
    tmp_path: Path,
) -> None:
    changed: list[str] = []

    def rewrite(topic: str, payload: bytes) -> bytes:
        message = json.loads(payload)
        if topic.endswith("/commands") and message.get("command") == "tool":
            message["label"] = {}
            message["payload"]["timeout_ms"] = 3_600_000
            changed.append(message["request_id"])
        return json.dumps(message).encode()

    async with seat(tmp_path) as here:
        garage = await here.join("garage")
        (url,) = re.findall(r'url = "mqtt://([^"]+)"', garage.config.read_text())
        host, _, port = url.partition(":")
        async with FaultProxy(host, int(port)) as proxy:
            garage.config.write_text(
                garage.config.read_text().replace(url, f"{proxy.host}:{proxy.port}")
            )
            await garage.start()
            await here.wait_online("garage")
            scripts = here.up.models.scripts
            scripts["first"] = 'call bash {"command": "echo x >> one"}\nsay fine'
            scripts["second"] = 'call bash {"command": "echo x >> two"}\nsay over'
            assert "fine" in (await here.type("chat", stdin=b"first\n")).out
            one, two = garage.workspace / "one", garage.workspace / "two"
            assert one.read_text() == "x\n"

            proxy.to_client.rewrite = rewrite
            proxy.to_client.duplicate(fraction=0.3)
            proxy.to_client.reorder(fraction=0.3)
            client = await here.up.wait_ready()
            begun = await client.post("/v1/runs", {"message": "second"})
            assert begun.status < 300, begun.body
            await until(lambda: len(changed) > 1, 60, "the command was sent, and sent again")
            assert not two.exists()

            proxy.to_client.rewrite = None
            proxy.to_client.clear()
            run_id = begun.json["run_id"]
            await client.until(f"/v1/runs/{run_id}", "state", "ended")
            assert one.read_text() == "x\n" and two.read_text() in ("x\n",)
