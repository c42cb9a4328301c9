"""Record a run to a file, and replay it offline, byte for byte."""

import asyncio
import tempfile
from pathlib import Path

from evoclaw import LocalExecutor, Permissions, Ports, Scripted, calls, run, says, tool
from evoclaw.core.replay import Replay
from evoclaw.store.sessions.recordings import Recording, encode_record, read_recording

rolled = iter((4, 2))


@tool("dice", effect="read", resources=())
def roll() -> int:
    """Roll a die."""
    return next(rolled)


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        recording = Recording(path)
        model = Scripted(calls(("roll", {}), ("roll", {})), says("A four and a two: six."))
        ports = Ports(model, LocalExecutor([roll]), Permissions(frozenset({"dice"})))
        result = await run("Roll two dice.", ports, sinks=[recording])
        recording.close()
        print(result.text)

        # The replay calls neither the model nor the tool.
        records = read_recording(path)
        again = [record async for record in Replay(records).records()]
        same = all(
            encode_record(a) == encode_record(b) for a, b in zip(again, records, strict=True)
        )
        print(f"{len(again)} records, the same: {same}")


if __name__ == "__main__":
    asyncio.run(main())
