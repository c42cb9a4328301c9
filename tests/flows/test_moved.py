"""The service, moved to another folder: what was begun goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.up_process import begun, ok, reached, said_in, up_process


@pytest.mark.slow
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
