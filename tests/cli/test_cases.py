"""`evoclaw cases`: who may add a case, and what is said without a service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evoclaw.cli.main import main


@pytest.mark.process
def test_a_process_started_by_an_agent_adds_no_case(tmp_path: Path) -> None:
    (tmp_path / "run").write_text(
        "import subprocess\n"
        f"subprocess.run([{sys.executable!r}, '-m', 'evoclaw', 'cases', 'add', 'r1'])\n"
    )
    done = subprocess.run(
        ["evoclaw", "run"],
        executable=sys.executable,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "only a person may" in done.stderr


def test_a_case_is_added_by_the_service_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOCLAW_HOME", str(tmp_path))
    assert main(["cases", "add", "r1"]) != 0
    assert "evoclaw up" in capsys.readouterr().err
    assert not (tmp_path / "cases").exists()
