"""What this machine tells of itself, from its system and real programs of a test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, ImageBlock, ToolResult
from evoclaw.core.tools import Call
from evoclaw.executors.devices import LocalDevice, LocalNotifier
from evoclaw.executors.local import LocalExecutor
from evoclaw.executors.processes import LocalProcesses
from evoclaw.tools.device import (
    DevicePins,
    DeviceSensors,
    Notifier,
    device,
    device_write,
    notify,
)

BARE = ("cpu", "memory", "disk", "processes")


def program(folder: Path, name: str, script: str) -> None:
    """A program of this name."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs are found, and no others but the system's shell and its tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def here(tmp_path: Path) -> LocalDevice:
    return LocalDevice(LocalProcesses(tmp_path))


async def use(bound: BoundTool, given: dict[type, object], **arguments: JSON) -> ToolResult:
    call = Call("c", bound.tool, arguments, "r.1.0.1", 10)
    return await LocalExecutor([bound], given=given).execute(call, lambda text: None)


@pytest.mark.parametrize("what", BARE)
async def test_device_tool_reports_cpu_memory_disk_and_processes(tmp_path: Path, what: str) -> None:
    machine = here(tmp_path)
    assert set(BARE) <= set(machine.sensor_names())

    result = await use(device, {DeviceSensors: machine}, what=what)

    assert result.error is None and result.text
    assert result.details


async def test_processes_are_listed_by_memory_usage(
    tmp_path: Path,
) -> None:
    result = await use(device, {DeviceSensors: here(tmp_path)}, what="processes")
    rows = result.details["processes"]
    assert rows == sorted(rows, key=lambda row: -row["mb"])
    assert os.getpid() in {row["pid"] for row in rows} or len(rows) == 15


async def test_temperature_is_offered_only_with_a_sensor(tmp_path: Path) -> None:
    readings = {"cpu-thermal": 48.312}
    warm = LocalDevice(LocalProcesses(tmp_path), temperatures=lambda: dict(readings))
    bare = LocalDevice(LocalProcesses(tmp_path), temperatures=lambda: {})

    result = await use(device, {DeviceSensors: warm}, what="temperature")

    assert result.text == "cpu-thermal: 48.3 °C"
    assert result.details == {"celsius": {"cpu-thermal": 48.312}}
    assert "temperature" not in bare.sensor_names()
    readings.clear()
    with pytest.raises(ToolFailure, match="does not report its temperature"):
        await use(device, {DeviceSensors: warm}, what="temperature")


async def test_device_readings_keep_their_result_keys(tmp_path: Path) -> None:
    machine: dict[type, object] = {DeviceSensors: here(tmp_path)}

    cpu, memory, disk, processes = [(await use(device, machine, what=w)).details for w in BARE]

    assert cpu.keys() == {"percent", "cores", "load"} and len(cpu["load"]) == 3
    assert memory.keys() == {"total_mb", "free_mb"} and memory["free_mb"] <= memory["total_mb"]
    assert disk["disks"]["/"].keys() == {"total", "free"}
    assert processes["processes"][0].keys() == {"pid", "mb", "name"}


async def test_a_gpio_pin_is_read_with_raspi_gpio(tmp_path: Path, bin: Path) -> None:
    assert "gpio" not in here(tmp_path).sensor_names()
    program(
        bin,
        "raspi-gpio",
        'test "$2" -lt 54 || { echo "no pin $2" >&2; exit 1; }\n'
        'echo "GPIO $2: level=1 fsel=0 func=INPUT"',
    )
    machine = here(tmp_path)

    result = await use(device, {DeviceSensors: machine}, what="gpio", pin=17)

    assert result.text == "GPIO 17: level=1 fsel=0 func=INPUT"
    with pytest.raises(ToolFailure, match="no pin 99") as failed:
        await use(device, {DeviceSensors: machine}, what="gpio", pin=99)
    assert failed.value.kind is ErrorKind.EXECUTION_FAILED
    with pytest.raises(ToolFailure, match="Set `pin`"):
        await use(device, {DeviceSensors: machine}, what="gpio")


async def test_a_gpio_pin_is_set_and_read_back(tmp_path: Path, bin: Path) -> None:
    assert not here(tmp_path).has_pins
    state = tmp_path / "pin"
    program(
        bin,
        "pinctrl",
        'test "$2" -lt 54 || { echo "no pin $2" >&2; exit 1; }\n'
        f'if test "$1" = set; then echo "$2: $3 $4" > {state}; else cat {state}; fi',
    )
    machine = here(tmp_path)
    assert machine.has_pins

    result = await use(device_write, {DevicePins: machine}, pin=17, level="high")

    assert result.text == "17: op dh"
    assert (await use(device_write, {DevicePins: machine}, pin=17, level="low")).text == "17: op dl"
    with pytest.raises(ToolFailure, match="Pin 99 cannot be set .*no pin 99"):
        await use(device_write, {DevicePins: machine}, pin=99, level="low")
    assert device_write.tool.permissions == {"device", "device_write"}


async def test_the_camera_returns_an_image_or_the_reason_of_the_failure(
    tmp_path: Path, bin: Path
) -> None:
    program(bin, "fswebcam", r"printf '\377\330\377\340picture'")
    result = await use(device, {DeviceSensors: here(tmp_path)}, what="camera")
    (block,) = result.blocks
    assert isinstance(block, ImageBlock) and block.media_type == "image/jpeg"

    program(bin, "fswebcam", "echo 'no such device' >&2; exit 1")
    with pytest.raises(ToolFailure, match="no such device"):
        await use(device, {DeviceSensors: here(tmp_path)}, what="camera")


async def test_an_unknown_sensor_is_refused_with_the_available_ones(tmp_path: Path) -> None:
    with pytest.raises(ToolFailure, match="has no 'altitude'. It has: cpu, memory") as failed:
        await use(device, {DeviceSensors: here(tmp_path)}, what="altitude")
    assert failed.value.kind is ErrorKind.NOT_FOUND


async def test_a_notification_message_is_shown_literally(tmp_path: Path, bin: Path) -> None:
    program(bin, "notify-send", f'shift; shift; printf %s "$1" > {tmp_path}/shown')
    person = LocalNotifier(LocalProcesses(tmp_path))
    assert person.works

    result = await use(notify, {Notifier: person}, message="--help $(date)\nnow")

    assert result.text == "shown by notify-send"
    assert (tmp_path / "shown").read_text() == "--help $(date)\nnow"
