"""Define a tool, run three calls concurrently, and print the result of the run."""

import asyncio

from evoclaw import LocalExecutor, Permissions, Ports, Scripted, calls, run, says, tool

ROOMS = {"kitchen": 21.5, "cellar": 12.0, "attic": 17.0}


@tool("sensors", effect="read", resources=("room",))
async def temperature(room: str) -> float:
    """Measure the temperature of a room in degrees Celsius.

    Args:
        room: kitchen, cellar or attic.
    """
    await asyncio.sleep(0)  # read a real sensor here
    return ROOMS[room]


async def main() -> None:
    model = Scripted(
        calls(*(("temperature", {"room": room}) for room in ROOMS)),
        says("The cellar is the coldest room, at 12 °C."),
    )
    ports = Ports(model, LocalExecutor([temperature]), Permissions(frozenset({"sensors"})))
    result = await run("Which room is the coldest?", ports)
    print(result.text)
    print(f"{result.stop}: {result.turns} turns, {result.calls} calls, up to "
          f"{result.metrics.max_concurrency} at once")  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
