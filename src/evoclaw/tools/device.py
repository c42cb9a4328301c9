"""The tools of a machine itself: read its sensors, set its pins, show a message on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

from msgspec import Meta

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.tools.define import tool


class DeviceSensors(Protocol):
    """The sensors of one machine."""

    def sensor_names(self) -> Sequence[str]:
        """The names of the sensors that this machine has."""
        ...

    async def read_sensor(self, what: str, pin: int | None) -> ToolOutput:
        """Read one sensor; `pin` is for `gpio`."""
        ...


@tool("device", timeout=10, max_timeout=60, effect="read", resources=())
async def device(
    machine: DeviceSensors, what: str, pin: Annotated[int, Meta(ge=0, le=1023)] | None = None
) -> ToolOutput:
    """Read a sensor of this device: temperature, cpu, memory, disk, processes, camera or gpio.

    Args:
        machine: The device's sensors.
        what: The sensor to read; not every device has all of them.
        pin: For `gpio`: the number of the pin to read.
    """
    sensors = machine.sensor_names()
    if what not in sensors:
        known = ", ".join(sensors)
        text = f"This device has no {what[:40]!r}. It has: {known}."
        raise ToolFailure(ErrorKind.NOT_FOUND, text)
    if what == "gpio" and pin is None:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "Set `pin` to the number of the pin to read.")
    return await machine.read_sensor(what, pin)


class DevicePins(Protocol):
    """The output pins of one machine."""

    async def write_pin(self, pin: int, *, high: bool) -> str:
        """Make a pin an output with this level; returns its new state."""
        ...


@tool("device", "device_write", timeout=10, max_timeout=60, idempotent=True, resources=("pin",))
async def device_write(
    machine: DevicePins, pin: Annotated[int, Meta(ge=0, le=1023)], level: Literal["high", "low"]
) -> str:
    """Set a GPIO pin of this device: it becomes an output. This switches what is connected to it.

    Args:
        machine: The device's pins.
        pin: The number of the pin, as `device` reads it.
        level: The new level.
    """
    return await machine.write_pin(pin, high=level == "high")


class Notifier(Protocol):
    """Shows messages to the person at a machine."""

    async def notify(self, message: str) -> str:
        """Show a message; returns how it was shown."""
        ...


@tool("device", timeout=10, max_timeout=60, resources=())
async def notify(
    person: Notifier, message: Annotated[str, Meta(min_length=1, max_length=500)]
) -> str:
    """Show a short message to the people at this device.

    Args:
        person: The way to them.
        message: The text to show.
    """
    return await person.notify(message)
