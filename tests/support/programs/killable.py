"""A process that ends itself by SIGKILL at a chosen moment: before, amid or after a step.

    python -m tests.support.programs.killable finish:after:1 edge --config agent.toml

runs `evoclaw edge …` and dies when its journal has taken the first end of a call. Nothing is
simulated: the process is gone, with all that it had not written.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.calls.journal import Journal
from evoclaw.transport.mqtt import MqttLink

STEPS: dict[str, type] = {
    "receive": Journal,
    "start": Journal,
    "finish": Journal,
    "acknowledge": Journal,
    "put": CommandStore,
    "mark": CommandStore,
    "settle": CommandStore,
    "publish": MqttLink,
}


def arm(point: str) -> None:
    """Have this process die at `step:when:count`, the count-th time the step is taken."""
    name, when, count = point.split(":")
    owner = STEPS[name]
    step: Callable[..., Coroutine[Any, Any, Any]] = getattr(owner, name)
    taken = 0

    @functools.wraps(step)
    async def mortal(*arguments: Any, **named: Any) -> Any:
        nonlocal taken
        taken += _counts(name, arguments)
        last = taken == int(count) and _counts(name, arguments)
        if last and when == "before":
            _die()
        work = asyncio.ensure_future(step(*arguments, **named))
        if last and when == "amid":
            await asyncio.sleep(0)  # it was begun, and nobody knows how far it came
            _die()
        result = await work
        if last:
            _die()
        return result

    setattr(owner, name, mortal)


def _counts(name: str, arguments: tuple[Any, ...]) -> bool:
    """Of all that is published only commands that do something, and results, are counted."""
    if name != "publish":
        return True
    payload: bytes = arguments[2]
    return b'"command":"tool"' in payload or b'"exit_code"' in payload


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Run the command line with a death ahead."""
    from evoclaw.__main__ import main as evoclaw

    point, *rest = sys.argv[1:]
    arm(point)
    sys.argv[1:] = rest
    return evoclaw()


if __name__ == "__main__":
    sys.exit(main())
