"""The service stopped, and killed: what was begun goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

from tests.api.test_runs import Event, all_events, next_event, watching
from tests.support.service import Client
from tests.support.up_process import PATIENCE, start_run, up_process, wait_for_state
from tests.support.waiting import until


async def test_a_first_signal_drains_runs_and_a_second_leaves_them_for_the_restart(
    tmp_path: Path,
) -> None:
    async with up_process(tmp_path) as up:
        up.configure()
        owner = await up.start()
        ends = await start_run(owner, "wait ends 4")
        await asyncio.wait_for(up.models.held["ends"].wait(), PATIENCE)
        up.signal(signal.SIGTERM)
        await up.wait_for_output("active runs: 1")
        refused = await owner.post("/v1/runs", {"message": "say too late"})
        assert (refused.status, refused.code) == (503, "draining")
        assert int(refused.headers["retry-after"]) > 0
        assert (await owner.get("/health/ready")).status == 503
        watcher = asyncio.create_task(all_events(owner, f"/v1/runs/{ends}/events"))
        up.models.gates["ends"].set()
        assert await up.wait_exit() == 0
        assert (await watcher)[-1].event == "run_finished"
        assert not (up.home / "api.json").exists()

        owner = await up.start()
        assert (await wait_for_state(owner, ends))["stop"] == "completed"
        left = await start_run(owner, "wait left 4")
        await asyncio.wait_for(up.models.held["left"].wait(), PATIENCE)
        up.signal(signal.SIGINT)
        await up.wait_for_output("active runs: 1", 2)
        up.signal(signal.SIGINT)
        began = time.monotonic()
        assert await up.wait_exit() == 0
        assert time.monotonic() - began < 15, "it does not wait for the run"
        up.models.gates["left"].set()

        owner = await up.start()
        view = await wait_for_state(owner, left)
        assert (view["stop"], view["text"]) == ("completed", "word0 word1 word2 word3 ")
        assert up.models.count("say too late") == 0
        assert "Traceback" not in up.output(), up.output()


async def test_a_killed_service_finishes_its_runs_after_restart_without_repeating_work(
    tmp_path: Path,
) -> None:
    hold = "echo x >> held; while [ ! -e go ]; do sleep 0.05; done"
    call = f"call bash {json.dumps({'command': hold})}\nsay I went on"
    async with up_process(tmp_path) as up:
        up.configure()
        owner = await up.start(edge=True)
        await up.wait_online(owner)
        replying = await start_run(owner, "wait reply 10")
        calling = await start_run(owner, call)
        await asyncio.wait_for(up.models.held["reply"].wait(), PATIENCE)
        seen = await _heard(owner, replying, 5)
        await until(lambda: up.marks("held") == 1, PATIENCE)
        await up.kill()
        up.models.gates["reply"].set()
        (up.workspace / "go").touch()

        owner = await up.start(edge=True)
        views = [await wait_for_state(owner, one) for one in (replying, calling)]
        assert [view["stop"] for view in views] == ["completed", "completed"], views
        assert views[0]["text"] == "".join(f"word{number} " for number in range(10))
        assert views[1]["text"] == "I went on"
        assert up.marks("held") == 1, "a command that had begun is not run again"
        assert up.models.count("wait reply") == 2, "a reply that was cut off is asked for anew"
        assert up.models.count(call) == 2, "a turn that was stored is not paid twice"
        after = seen[-1].id
        rest = await all_events(owner, f"/v1/runs/{replying}/events", last_event_id=after)
        numbers = [int(event.id) for event in rest]
        assert numbers == sorted(set(numbers)) and numbers[0] > int(after)
        assert rest[-1].event == "run_finished"


async def _heard(client: Client, run_id: str, words: int) -> list[Event]:
    """Watch a run until so many words were said."""
    seen: list[Event] = []
    async with watching(client, f"/v1/runs/{run_id}/events") as stream:
        while sum(one.event == "text_delta" for one in seen) < words:
            event = await next_event(stream)
            assert event is not None
            seen.append(event)
    return seen
