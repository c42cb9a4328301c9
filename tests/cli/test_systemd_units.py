"""Unit files, and the word to systemd that we are ready."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from evoclaw.cli.systemd import UnitOptions, unit
from evoclaw.cli.systemd_notify import READY, STOPPING, notify_systemd
from evoclaw.core.errors import ConfigError


def printed(home: Path, *words: str) -> str:
    """What `evoclaw systemd` prints for the owner of a data folder."""
    done = subprocess.run(
        [sys.executable, "-m", "evoclaw", "systemd", *words],
        env={**os.environ, "HOME": str(home), "EVOCLAW_HOME": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("which", ["orchestrator", "edge"])
@pytest.mark.parametrize("system", [False, True])
def test_systemd_analyze_accepts_the_unit_files(which: str, system: bool, tmp_path: Path) -> None:
    folder = tmp_path / "a b%c$d"
    folder.mkdir()
    words = ("--system", "--user", "root") if system else ()
    text = printed(tmp_path, which, "--folder", str(folder), *words)
    file = tmp_path / ("evoclaw.service" if which == "orchestrator" else "evoclaw-edge.service")
    file.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(() if system else ("--user",)), str(file)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"[Install]\nWantedBy={'multi-user' if system else 'default'}.target\n" in text


def test_a_unit_is_hardened_without_breaking_sandboxes() -> None:
    text = unit(UnitOptions(system=True), {})
    settings = [line for line in text.splitlines() if line and not line.startswith("#")]
    for wanted in ("Type=notify", "NoNewPrivileges=yes", "Restart=on-failure", "UMask=0077",
                   "ExecReload=/bin/kill -HUP $MAINPID", "ProtectSystem=strict"):  # fmt: skip
        assert wanted in settings
    for breaking in ("RestrictNamespaces", "ProtectProc", "PrivateUsers", "ProtectKernelTunables"):
        assert not [line for line in settings if line.startswith(breaking)]
    edge = unit(UnitOptions("edge"), {})
    assert "ExecReload" not in edge, "an edge has nothing to read again: SIGHUP would end it"


def test_a_path_that_is_unsafe_in_a_unit_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="control characters"):
        unit(UnitOptions(folder=Path("/a\nExecStartPre=/bin/sh")), {})


@pytest.mark.parametrize("hidden", [False, True])
def test_sd_notify_sends_to_the_notify_socket(hidden: bool, tmp_path: Path) -> None:
    name = f"@{os.getpid()}-evoclaw" if hidden else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0", 1))
        listener.settimeout(5)
        assert notify_systemd(READY, "STATUS=two edges", env={"NOTIFY_SOCKET": name})
        assert listener.recv(1024) == b"READY=1\nSTATUS=two edges"


def test_sd_notify_does_nothing_without_a_notify_socket(tmp_path: Path) -> None:
    assert not notify_systemd(STOPPING, env={})
    assert not notify_systemd(STOPPING, env={"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert not notify_systemd(STOPPING, env={"NOTIFY_SOCKET": "relative"})
