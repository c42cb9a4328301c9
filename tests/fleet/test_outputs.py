"""Big outputs stay on the device: sent are two ends and a handle, read on and fetched by it."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.bound_tools import BoundTool, ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ImageBlock, TextBlock, ToolResult
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Progress
from evoclaw.core.tools import Call
from evoclaw.edge.outputs import KeepLargeOutput, artifact_tool
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.orchestrator.fleet.artifacts import FetchFailed
from evoclaw.store.calls.artifacts import ArtifactStore
from evoclaw.tools.define import tool
from evoclaw.tools.shell import bash
from evoclaw.transport.link import MAX_PAYLOAD_BYTES
from tests.support.fleet import Fault, FleetHarness, open_fleet
from tests.support.waiting import until

LIMIT = 64 * 1024


@tool("shell")
async def say(size: int, words: str = "x") -> str:
    """Answer with a lot."""
    return words * size


@tool("shell", streams=True)
async def stream(progress: Progress, pieces: int, fails: bool = False) -> str:
    """Say a lot, and little at the end."""
    for n in range(pieces):
        progress(f"line {n:06}\n")
    if fails:
        raise ToolFailure(ErrorKind.EXECUTION_FAILED, "It broke.\n" + "y" * 100_000)
    return "done"


@tool("shell")
async def draw(size: int) -> ToolOutput:
    """Make a picture."""
    data = b64encode(bytes(range(256)) * (size // 256)).decode()
    return ToolOutput((TextBlock("Here:"), ImageBlock("image/png", data)), {"diff": "d" * 100_000})


def executor(folder: Path, *bound: BoundTool) -> Pipeline:
    inner = LocalExecutor(
        [say, stream, draw, bash, *bound], exec=LocalProcesses(folder, isolation="none")
    )
    artifacts = ArtifactStore(folder / "artifacts")
    reading = LocalExecutor([artifact_tool(artifacts)])
    return Pipeline([inner, reading], [KeepLargeOutput(artifacts, limit=LIMIT)])


async def run(
    outputs: Pipeline, name: str, said: list[str] | None = None, **given: JSON
) -> ToolResult:
    found = next(one for one in outputs.tools() if one.name == name)
    call = Call("c1", found, given, "run.1.0.1", 30)
    return await outputs.execute(call, (said if said is not None else list[str]()).append)


def size(result: ToolResult) -> int:
    return len(msgspec.json.encode(result))


def about(result: ToolResult) -> dict[str, JSON]:
    found = result.details["artifact"]
    assert isinstance(found, dict)
    return found  # pyright: ignore[reportUnknownVariableType]


async def test_a_result_within_the_limit_is_sent_unchanged(tmp_path: Path) -> None:
    outputs = executor(tmp_path)
    result = await run(outputs, "say", size=60_000)
    assert result.text == "x" * 60_000
    assert "artifact" not in result.details
    assert not (tmp_path / "artifacts").exists()


async def test_a_long_result_is_truncated_and_stored_whole_as_an_artifact(tmp_path: Path) -> None:
    outputs = executor(tmp_path)
    result = await run(outputs, "say", size=1_000_000, words="abc\n")
    assert size(result) < LIMIT
    assert result.details["truncated"] is True
    handle = str(about(result)["handle"])
    assert (about(result)["size"], about(result)["kept"]) == (4_000_000, 4_000_000)
    assert handle == "sha256:" + sha256(b"abc\n" * 1_000_000).hexdigest()
    assert result.text.startswith("abc\n") and result.text.endswith("abc\n")
    assert (
        handle in result.text and "`artifact`" in result.text and "3,950,848 bytes" in result.text
    )


async def test_output_beyond_ten_megabytes_is_counted_but_not_stored(tmp_path: Path) -> None:
    outputs = executor(tmp_path)
    result = await run(outputs, "say", size=12_000_000)
    assert (about(result)["size"], about(result)["kept"]) == (12_000_000, 10_000_000)
    assert "the first 10,000,000 of them kept" in result.text


@pytest.mark.process
async def test_the_whole_output_of_a_program_is_stored_as_an_artifact(
    tmp_path: Path,
) -> None:
    outputs = executor(tmp_path)
    said: list[str] = []
    result = await run(outputs, "bash", said, command="seq 1 100000")
    whole = "".join(f"{n}\n" for n in range(1, 100_001)).encode()
    assert about(result)["size"] == len(whole) == about(result)["kept"]
    assert about(result)["handle"] == "sha256:" + sha256(whole).hexdigest()
    assert result.text.startswith("1\n2\n") and result.text.endswith("99999\n100000\n")
    assert size(result) < LIMIT
    assert len("".join(said)) < 2 * LIMIT, "while it ran, no more was shown than can be"


@pytest.mark.process
async def test_a_failed_command_reports_its_exit_code_and_output(tmp_path: Path) -> None:
    outputs = executor(tmp_path)
    result = await run(outputs, "bash", command="seq 1 50000; exit 7")
    assert result.error is ErrorKind.EXECUTION_FAILED
    assert result.text.startswith("The command ended with exit code 7.\n1\n2\n")
    assert result.details["exit_code"] == 7
    assert "50000" in result.text and "handle" in about(result)


async def test_a_short_result_after_long_progress_output_mentions_the_artifact(
    tmp_path: Path,
) -> None:
    outputs = executor(tmp_path)
    result = await run(outputs, "stream", pieces=10_000)
    assert result.text.startswith(
        "done\n[The complete output is kept on the device: 120,000 bytes in all"
    )
    assert about(result)["size"] == 120_000
    assert "truncated" not in result.details
    failed = await run(outputs, "stream", pieces=10_000, fails=True)
    assert failed.error is ErrorKind.EXECUTION_FAILED
    assert failed.text.startswith("It broke.\n")


@pytest.mark.parametrize("words", ["\x01", "é", "😀", "\\"])
async def test_text_that_grows_when_encoded_is_truncated_to_the_limit(
    tmp_path: Path, words: str
) -> None:
    result = await run(executor(tmp_path), "say", size=200_000, words=words)
    assert size(result) < 110_000
    assert "handle" in about(result)


async def test_large_images_are_stored_small_ones_sent_and_long_details_omitted(
    tmp_path: Path,
) -> None:
    outputs = executor(tmp_path)
    small = await run(outputs, "draw", size=10_240)
    assert isinstance(small.blocks[1], ImageBlock)
    big = await run(outputs, "draw", size=512_000)
    assert size(big) < LIMIT
    assert "524,288" not in big.text and "512,000 bytes" in big.text and "sha256:" in big.text
    assert "bytes left out" in str(big.details["diff"])


@pytest.mark.process
async def test_truncated_output_is_sent_when_the_artifact_cannot_be_stored(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("a file where the folder should be")
    outputs = executor(tmp_path)
    result = await run(outputs, "say", size=1_000_000)
    assert result.error is None and size(result) < LIMIT + 1_000
    assert "characters left out" in result.text
    streamed = await run(outputs, "bash", command="seq 1 100000")
    assert streamed.error is None and streamed.text.startswith("1\n")


@pytest.mark.process
async def test_a_cancelled_call_leaves_no_partial_artifact(tmp_path: Path) -> None:
    outputs = executor(tmp_path)
    task = asyncio.create_task(run(outputs, "bash", command="seq 1 100000; sleep 60"))
    folder = tmp_path / "artifacts"
    await until(lambda: folder.exists() and any(folder.iterdir()))
    task.cancel()
    await asyncio.wait([task])
    assert list(folder.iterdir()) == []


async def read(outputs: Pipeline, handle: JSON, **given: JSON) -> ToolResult:
    try:
        return await run(outputs, "artifact", handle=handle, **given)
    except ToolFailure as problem:
        return ToolResult("c1", "artifact", (TextBlock(problem.message),), problem.kind)


@pytest.mark.process
async def test_an_artifact_is_read_on_the_edge_by_offset_tail_or_grep(
    tmp_path: Path,
) -> None:
    outputs = executor(tmp_path)
    handle = about(await run(outputs, "bash", command="seq 1 100000"))["handle"]
    part = await read(outputs, handle, offset=100, length=20)
    assert "[bytes 100 to 120 of 588,895; continue at offset 120]" in part.text
    end = await read(outputs, handle, offset=588_890)
    assert end.text.endswith("this is the end]")
    tail = await read(outputs, handle, action="tail", lines=2)
    assert tail.text == "99999\n100000\n"
    found = await read(outputs, handle, action="grep", pattern="^4[24]242$")
    assert found.text == "42242: 42242\n44242: 44242"
    none = await read(outputs, handle, action="grep", pattern="nothing")
    assert none.text == "(no line matches)"
    many = await read(outputs, handle, action="grep", pattern="7", lines=3)
    assert many.text.endswith("use a more precise pattern, or a larger `lines`]")


async def test_an_unknown_artifact_handle_and_an_invalid_pattern_are_reported(
    tmp_path: Path,
) -> None:
    outputs = executor(tmp_path)
    handle = about(await run(outputs, "say", size=100_000))["handle"]
    assert (await read(outputs, "sha256:" + "0" * 64)).error is ErrorKind.NOT_FOUND
    assert (await read(outputs, "../../etc/passwd")).error is ErrorKind.NOT_FOUND
    bad = await read(outputs, handle, action="grep", pattern="(")
    assert bad.error is ErrorKind.INVALID_PARAMS


@asynccontextmanager
async def kept(tmp_path: Path, *names: str) -> AsyncGenerator[FleetHarness]:
    """A fleet whose edges keep what is too much."""
    async with open_fleet(tmp_path, *names, start=False, tools=[say, draw]) as here:
        for name, device in here.devices.items():
            device.artifacts = ArtifactStore(tmp_path / f"{name}.artifacts")
            await device.start()
        await here.wait_online(*here.devices)
        yield here


async def make(here: FleetHarness, size: int = 1_000_000) -> str:
    result = await here.run_tool("say", size=size, words="abcdefg")
    assert result.error is None, result.text
    return str(about(result)["handle"])


@pytest.mark.slow
async def test_fault_23_a_large_result_is_sent_truncated_and_fetched_whole(
    tmp_path: Path,
) -> None:
    async with kept(tmp_path) as here:
        handle = await make(here)
        path = tmp_path / "copy"
        assert await here.orchestrator.fetch("pi", handle, path) == 7_000_000
        assert path.read_bytes() == b"abcdefg" * 1_000_000
        assert sorted(p.name for p in tmp_path.glob(".copy*")) == []  # noqa: ASYNC240
        assert max(len(payload) for _, payload in here.pi.link.sent) <= MAX_PAYLOAD_BYTES
        here.broker.max_payload = 20_000
        assert await here.orchestrator.fetch("pi", handle, tmp_path / "small") == 7_000_000
        image = await here.run_tool("draw", size=256_000)
        assert "sha256:" in image.text


async def test_an_interrupted_fetch_resumes_where_it_stopped(tmp_path: Path) -> None:
    async with kept(tmp_path) as here:
        handle = await make(here)
        path = tmp_path / "copy"
        part = tmp_path / f".copy.{handle[7:23]}.part"
        asked: list[int] = []

        def cut(topic: str, payload: bytes) -> Fault:
            if b'"action":"fetch"' in payload:
                offset = msgspec.json.decode(payload)["payload"]["parameters"]["offset"]
                asked.append(offset)
            return Fault.NONE

        here.link.fault = cut
        task = asyncio.create_task(here.orchestrator.fetch("pi", handle, path))
        await until(lambda: part.exists() and part.stat().st_size >= 1_000_000)
        task.cancel()
        await asyncio.wait([task])
        have = part.stat().st_size
        assert 0 < have < 7_000_000 and not path.exists()
        before = len(asked)
        assert await here.orchestrator.fetch("pi", handle, path) == 7_000_000
        assert asked[before] == have, "it did not begin anew"
        assert sha256(path.read_bytes()).hexdigest() == handle[7:]


async def test_a_fetched_copy_with_the_wrong_hash_is_discarded(tmp_path: Path) -> None:
    async with kept(tmp_path) as here:
        handle = await make(here)
        part = tmp_path / f".copy.{handle[7:23]}.part"
        part.write_bytes(b"not the beginning")
        with pytest.raises(FetchFailed, match="does not match the handle"):
            await here.orchestrator.fetch("pi", handle, tmp_path / "copy")
        assert not part.exists() and not (tmp_path / "copy").exists()
        assert await here.orchestrator.fetch("pi", handle, tmp_path / "copy") == 7_000_000


async def test_fetching_an_unknown_artifact_fails_with_a_reason(tmp_path: Path) -> None:
    async with kept(tmp_path) as here:
        with pytest.raises(FetchFailed, match="invalid handle"):
            await here.orchestrator.fetch("pi", "../x", tmp_path / "copy")
        with pytest.raises(FetchFailed, match="expired, or was never stored here"):
            await here.orchestrator.fetch("pi", "sha256:" + "0" * 64, tmp_path / "copy")
    async with open_fleet(tmp_path / "two") as here:
        with pytest.raises(FetchFailed, match="stores no artifacts"):
            await here.orchestrator.fetch("pi", "sha256:" + "0" * 64, tmp_path / "copy")


async def test_an_artifact_is_read_from_the_edge_that_stores_it(tmp_path: Path) -> None:
    async with kept(tmp_path, "a", "b") as here:
        executor = here.orchestrator.delegated()
        tools = {one.name: one for one in executor.tools()}
        made = Call("c1", tools["say"], {"size": 200_000}, "1" * 32 + ".1.0.1", 10)
        result = await executor.execute(made, lambda text: None)
        holder = result.details["agent"]
        other = here.orchestrator.delegated()
        handle = about(result)["handle"]
        # As if the tool itself had gone to the other one before.
        elsewhere = "b" if holder == "a" else "a"
        await here.devices[str(holder)].stop()
        await until(lambda: not here.orchestrator.fleet.is_online(str(holder)))
        first = Call("c2", tools["artifact"], {"handle": handle}, "2" * 32 + ".1.0.1", 10)
        lost = await other.execute(first, lambda text: None)
        assert (lost.details["agent"], lost.error) == (elsewhere, ErrorKind.NOT_FOUND)
        await here.devices[str(holder)].start()
        await here.wait_online(str(holder))
        second = Call("c3", tools["artifact"], {"handle": handle}, "3" * 32 + ".1.0.1", 10)
        found = await executor.execute(second, lambda text: None)
        assert (found.details["agent"], found.error) == (holder, None)
