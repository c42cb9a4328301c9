"""A part of the workspace that no command may see: our own keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.sandbox.engines.registry import package_engines
from evoclaw.sandbox.sandboxes import LocalSandboxes
from evoclaw.sandbox.self_test import SandboxSelfTest
from tests.support.sandboxes import policy, sandboxed

TRY = "cat .evoclaw/key; echo x >.evoclaw/new; mv .evoclaw away; rm -rf .evoclaw; ls -a; touch mine"


@pytest.mark.parametrize("warm", [True, False])
async def test_a_command_cannot_read_or_move_a_hidden_folder(tmp_path: Path, warm: bool) -> None:
    own = tmp_path / ".evoclaw"
    own.mkdir()
    (own / "key").write_text("a secret")
    async with sandboxed(policy(tmp_path, hidden=(str(own),)), warm=warm) as processes:
        done = await processes.run(("bash", "-c", TRY))
    assert b"a secret" not in done.stdout + done.stderr
    assert [one.name for one in own.iterdir()] == ["key"]
    assert (own / "key").read_text() == "a secret"
    assert (tmp_path / "mine").exists()


async def test_an_engine_that_cannot_hide_folders_is_refused(tmp_path: Path) -> None:
    bounds = policy(tmp_path, hidden=(str(tmp_path / ".evoclaw"),))
    sandboxes = LocalSandboxes(bounds, package_engines(), SandboxSelfTest(), default="podman")
    with pytest.raises(ToolFailure) as refused:
        sandboxes.exec_in()
    assert refused.value.kind is ErrorKind.SANDBOX_UNAVAILABLE
    assert "work in another folder" in refused.value.message
