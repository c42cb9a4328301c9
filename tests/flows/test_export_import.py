"""The service, moved to another folder: what was begun goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.up_process import ok, session_texts, start_run, up_process, wait_for_state


@pytest.mark.slow
async def test_a_waiting_run_continues_in_another_folder_after_export_and_import(
    tmp_path: Path,
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    async with up_process(tmp_path / "old") as old, up_process(tmp_path / "new") as new:
        old.configure()
        owner = await old.start()
        run_id = await start_run(owner, "say remember me")
        view = await wait_for_state(owner, run_id)
        asks = json.dumps({"question": "Go on?"})
        waits = await start_run(owner, f"call question {asks}\nsay went on elsewhere")
        await wait_for_state(owner, waits, "waiting")
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
        assert (await wait_for_state(owner, waits))["text"] == "went on elsewhere"
        follows = await start_run(owner, "say and more", session_id=view["session_id"])
        await wait_for_state(owner, follows)
        said = await session_texts(owner, view["session_id"])
        assert said == ["say remember me", "remember me", "say and more", "and more"]
