"""The tool `undo` of an edge, over its own before-images."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, TextBlock, ToolResult
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.tools import Call
from evoclaw.edge.undo import KeepBeforeImages, undo_tool
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.tracked_files import TrackedFiles
from evoclaw.store.calls.before_images import BeforeImages
from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.tools.catalogue import load
from evoclaw.tools.define import tool


@tool(name="liar")
async def liar() -> ToolResult:
    """Claims changes that it did not make."""
    details = {"changes": [{"call": "other", "paths": ["a"]}]}
    return ToolResult("", "liar", (TextBlock("ok"),), details=details)


class Machine:
    """A workspace whose calls can be undone."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.images = BeforeImages(folder / "undo", cipher=BlobCipher(), max_file_bytes=100)
        files = TrackedFiles(self.work)
        tools = [*load(("write", "edit", "apply_patch")), undo_tool(self.images, files), liar]
        self.pipeline = Pipeline(
            [LocalExecutor(tools, files=files)], [KeepBeforeImages(self.images)]
        )
        self.calls = 0

    async def call(self, name: str, **arguments: object) -> ToolResult:
        self.calls += 1
        (made,) = [found for found in self.pipeline.tools() if found.name == name]
        call = Call("c", made, dict(arguments), f"run.{self.calls}.0.1", 5)
        return await self.pipeline.execute(call, lambda _: None)

    async def undo(self, *results: ToolResult) -> ToolResult:
        entries = [entry for result in results for entry in result.details["changes"]]
        calls = [entry["call"] for entry in entries]
        paths = sorted({path for entry in entries for path in entry["paths"]})
        return await self.call("undo", calls=calls, paths=paths)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_several_changes_of_a_file_are_taken_back_to_before_the_first(
    machine: Machine,
) -> None:
    note = machine.work / "note"
    note.write_text("one")
    note.chmod(0o600)
    first = await machine.call("write", path="note", content="two")
    second = await machine.call("edit", path="note", old_string="two", new_string="three")
    undone = await machine.undo(first, second)
    assert undone.error is None and undone.details["restored"] == ["note"]
    assert note.read_text() == "one" and note.stat().st_mode & 0o777 == 0o600


async def test_a_file_that_changed_since_keeps_every_file_as_it_is(machine: Machine) -> None:
    (machine.work / "a").write_text("a")
    made = [await machine.call("write", path=path, content="new") for path in ("a", "b")]
    (machine.work / "b").write_text("mine")
    refused = await machine.undo(*made)
    assert refused.error is ErrorKind.CONFLICT and "'b' changed after" in refused.text
    assert (machine.work / "a").read_text() == "new"
    (machine.work / "b").unlink()
    undone = await machine.undo(*made)
    assert undone.error is None and (machine.work / "a").read_text() == "a"


async def test_changes_are_taken_back_once(machine: Machine) -> None:
    made = await machine.call("write", path="a", content="new")
    assert (await machine.undo(made)).error is None
    again = await machine.undo(made)
    assert again.error is ErrorKind.CONFLICT and "undone before" in again.text


async def test_undoing_an_undo_brings_the_changes_back(machine: Machine) -> None:
    made = await machine.call("write", path="a", content="new")
    undone = await machine.undo(made)
    assert not (machine.work / "a").exists()
    assert (await machine.undo(undone)).error is None
    assert (machine.work / "a").read_text() == "new"


async def test_a_file_that_was_too_large_is_named_and_the_others_are_restored(
    machine: Machine,
) -> None:
    (machine.work / "big").write_text("b" * 101)
    (machine.work / "small").write_text("s")
    made = [await machine.call("write", path=path, content="new") for path in ("big", "small")]
    undone = await machine.undo(*made)
    assert undone.details["restored"] == ["small"]
    assert undone.details["not_restored"] == {"big": "it had 101 bytes before, too many to keep"}
    assert (machine.work / "big").read_text() == "new"


async def test_undo_needs_every_path_that_the_calls_changed(machine: Machine) -> None:
    made = await machine.call("write", path="secret", content="new")
    call_id = made.details["changes"][0]["call"]
    refused = await machine.call("undo", calls=[call_id], paths=["other"])
    assert refused.error is ErrorKind.INVALID_PARAMS and "'secret'" in refused.text
    assert (machine.work / "secret").exists()


async def test_only_calls_of_this_machine_can_be_taken_back(machine: Machine) -> None:
    (machine.work / "a").write_text("a")
    refused = await machine.call("undo", calls=["run.9.0.1"], paths=["a"])
    assert refused.error is ErrorKind.NOT_FOUND and (machine.work / "a").exists()


async def test_a_tool_cannot_claim_changes_of_its_own(machine: Machine) -> None:
    assert "changes" not in (await machine.call("liar")).details


async def test_a_failed_patch_that_was_rolled_back_can_still_be_undone(machine: Machine) -> None:
    (machine.work / "a").write_text("a\n")
    patch = "*** Begin Patch\n*** Update File: a\n@@\n-a\n+b\n*** Add File: a/b\n+x\n*** End Patch"
    failed = await machine.call("apply_patch", patch=patch)
    assert failed.error is not None and (machine.work / "a").read_text() == "a\n"
    if "changes" in failed.details:
        assert (await machine.undo(failed)).error is None
    assert (machine.work / "a").read_text() == "a\n"


async def test_without_a_call_nothing_is_kept(tmp_path: Path) -> None:
    files = TrackedFiles(tmp_path)
    await files.write("a", b"1")
    await files.remove("a")
    with pytest.raises(ToolFailure):
        await files.read("a")
