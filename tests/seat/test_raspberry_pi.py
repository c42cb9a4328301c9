"""The examples of a Raspberry Pi, on an edge with default settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.cli import exits
from tests.support.seat import Seat, seat

PRESET = """
[sandbox]
preset = "raspberry-pi"
"""
HOSTNAME_FILE = Path("/etc/hostname")
HOSTNAME = HOSTNAME_FILE.read_text().strip() if HOSTNAME_FILE.exists() else ""
PINS = """#!/bin/sh
if test "$1" = set; then echo "GPIO $2: level=1 fsel=1 func=OUTPUT" > "$HOME/pin"
else test -e "$HOME/pin" && cat "$HOME/pin" || echo "GPIO $2: level=0 fsel=0 func=INPUT"; fi
"""


async def results(place: Seat, edge: str, *calls: str) -> list[str]:
    """What the model is told after each of its calls, on one edge."""
    models = place.up.models
    models.scripts["look"] = "".join(f"call {call}\n" for call in calls) + "say Done."
    ran = await place.type("run", "--on", edge, "--yes", "look")
    assert ran.code == exits.OK, ran.err
    told = [one for one in models.asked[-1].body["messages"] if one["role"] == "tool"]
    return [str(one["content"]) for one in told]


@pytest.mark.skipif(not HOSTNAME, reason="this machine has no /etc/hostname")
async def test_the_hostname_is_read_and_a_pin_is_switched_where_that_is_permitted(
    tmp_path: Path,
) -> None:
    async with seat(tmp_path) as place:
        for name, held in (("pi", "file_read,shell,device,device_write"), ("eye", "device")):
            edge = await place.join(name, capabilities=held, toml=PRESET)
            programs = edge.shell.home / "bin"
            programs.mkdir()
            (programs / "raspi-gpio").write_text(PINS)
            (programs / "raspi-gpio").chmod(0o755)
            edge.shell.env["PATH"] = f"{programs}:{edge.shell.environment['PATH']}"
            await edge.start()
            await place.wait_online(name)

        read, command, secret, before, after = await results(
            place,
            "pi",
            'read {"path": "/etc/hostname"}',
            'bash {"command": "cat /etc/hostname; ls /sys/devices/system/cpu"}',
            'read {"path": "/etc/passwd"}',
            'device {"what": "gpio", "pin": 17}',
            'device_write {"pin": 17, "level": "high"}',
        )
        assert HOSTNAME in read
        assert HOSTNAME in command and "cpu0" in command
        assert "outside the workspace" in secret
        assert "GPIO 17: level=0" in before
        assert "GPIO 17: level=1" in after

        (refused,) = await results(place, "eye", 'device_write {"pin": 17, "level": "high"}')
        assert "not found" in refused
        assert not (place.edges["eye"].shell.home / "pin").exists()
