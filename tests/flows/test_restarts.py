"""The service stopped, killed, and moved to another folder: what was begun goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

from tests.api.house import Client
from tests.api.test_runs import Event, all_events, next_event, watching
from tests.faults.support import until
from tests.flows.up_process import PATIENCE, begun, ok, reached, said_in, up_process


async def test_told_to_stop_it_lets_runs_end_and_told_again_it_leaves_them(
    tmp_path: Path,
) -> None:
    async with up_process(tmp_path) as up:
        up.configure()
        owner = await up.start()
        ends = await begun(owner, "wait ends 4")
        await asyncio.wait_for(up.models.held["ends"].wait(), PATIENCE)
        up.signal(signal.SIGTERM)
        await up.told("still going on: 1")
        refused = await owner.post("/v1/runs", {"message": "say too late"})
        assert (refused.status, refused.code) == (503, "draining")
        assert int(refused.headers["retry-after"]) > 0
        assert (await owner.get("/health/ready")).status == 503
        watcher = asyncio.create_task(all_events(owner, f"/v1/runs/{ends}/events"))
        up.models.gates["ends"].set()
        assert await up.ended() == 0
        assert (await watcher)[-1].event == "run_finished"
        assert not (up.home / "api.json").exists()

        owner = await up.start()
        assert (await reached(owner, ends))["stop"] == "completed"
        left = await begun(owner, "wait left 4")
        await asyncio.wait_for(up.models.held["left"].wait(), PATIENCE)
        up.signal(signal.SIGINT)
        await up.told("still going on: 1", 2)
        up.signal(signal.SIGINT)
        began = time.monotonic()
        assert await up.ended() == 0
        assert time.monotonic() - began < 15, "it does not wait for the run"
        up.models.gates["left"].set()

        owner = await up.start()
        view = await reached(owner, left)
        assert (view["stop"], view["text"]) == ("completed", "word0 word1 word2 word3 ")
        assert up.models.count("say too late") == 0
        assert "Traceback" not in up.words(), up.words()


async def test_killed_in_a_reply_and_in_a_call_the_next_process_ends_both_and_nothing_twice(
    tmp_path: Path,
) -> None:
    hold = "echo x >> held; while [ ! -e go ]; do sleep 0.05; done"
    call = f"call bash {json.dumps({'command': hold})}\nsay I went on"
    async with up_process(tmp_path) as up:
        up.configure()
        owner = await up.start(edge=True)
        await up.online(owner)
        replying = await begun(owner, "wait reply 10")
        calling = await begun(owner, call)
        await asyncio.wait_for(up.models.held["reply"].wait(), PATIENCE)
        seen = await _heard(owner, replying, 5)
        await until(lambda: up.marks("held") == 1, PATIENCE)
        await up.kill()
        up.models.gates["reply"].set()
        (up.workspace / "go").touch()

        owner = await up.start(edge=True)
        views = [await reached(owner, one) for one in (replying, calling)]
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


async def test_everything_is_exported_and_goes_on_in_another_folder(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    async with up_process(tmp_path / "old") as old, up_process(tmp_path / "new") as new:
        old.configure()
        owner = await old.start()
        run_id = await begun(owner, "say remember me")
        view = await reached(owner, run_id)
        asks = json.dumps({"question": "Go on?"})
        waits = await begun(owner, f"call question {asks}\nsay went on elsewhere")
        await reached(owner, waits, "waiting")
        records = (await owner.get(f"/v1/runs/{run_id}/records")).body
        assert await old.stop() == 0
        file = tmp_path / "all.jsonl"
        written = await old.shell.type("export", str(file))
        assert written.code == 0, written.err
        assert file.stat().st_mode & 0o077 == 0
        read = await new.shell.type("import", str(file))
        assert read.code == 0, read.err
        again = await new.shell.type("import", str(file))
        assert again.code != 0, "nothing is mixed into what is there"

        new.configure()
        owner = await new.start()
        assert ok(await owner.get(f"/v1/runs/{run_id}")) == view
        assert (await owner.get(f"/v1/runs/{run_id}/records")).body == records
        ok(await owner.post(f"/v1/runs/{waits}/answer", {"text": "yes"}))
        assert (await reached(owner, waits))["text"] == "went on elsewhere"
        follows = await begun(owner, "say and more", session_id=view["session_id"])
        await reached(owner, follows)
        said = await said_in(owner, view["session_id"])
        assert said == ["say remember me", "remember me", "say and more", "and more"]
