"""Commands for one edge, typed on the machine of the service: its metrics, and its end."""

from __future__ import annotations

import json
from pathlib import Path

from evoclaw.cli import exits
from tests.support.seat import seat
from tests.support.up_process import PATIENCE
from tests.support.waiting import until


async def test_an_edge_shows_its_metrics_and_shuts_down_unless_its_settings_refuse(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        garage = await place.add_edge("garage")
        await place.add_edge("shed", toml="\n[commands]\nshutdown = false\n")
        (garage.workspace / "note.txt").write_text("the key is under the mat")
        for name in ("note.txt", "nothing.txt"):
            place.up.models.scripts[f"read {name}"] = f'call read {{"path": "{name}"}}\nsay done'
            read = await place.type("run", "--on", "garage", f"read {name}")
            assert read.code == exits.OK, read.err

        shown = await place.type("edges", "metrics", "garage")
        assert shown.code == exits.OK, shown.err
        assert "garage: 0 calls run, 0 wait; CPU" in shown.out
        head, row = (line.split() for line in shown.out.splitlines()[-2:])
        assert head[:5] == ["tool", "calls", "ok", "failed", "timeouts"]
        assert row[:5] == ["read", "2", "1", "1", "0"]
        assert "nothing.txt" in shown.out
        metrics = json.loads((await place.type("edges", "metrics", "garage", "--json")).out)
        assert metrics["tools"]["tools"]["read"]["total_calls"] == 2

        refused = await place.type("edges", "shutdown", "shed")
        assert refused.code == exits.MISUSED
        assert "shed refused 'shutdown': This agent does not accept the command" in refused.err
        ended = await place.type("edges", "shutdown", "garage")
        assert ended.code == exits.OK, ended.err
        process = garage.process
        assert process is not None
        await until(lambda: process.returncode == 0, PATIENCE, "the edge ended by itself")
