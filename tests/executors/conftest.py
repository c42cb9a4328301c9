from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest

from evoclaw.executors import beneath
from evoclaw.executors.files import LocalFiles
from evoclaw.executors.processes import LocalProcesses
from tests.support.processes import Isolation, make_processes


@pytest.fixture(params=["pid-namespace", "none"])
async def processes(request: pytest.FixtureRequest, tmp_path: Path) -> LocalProcesses:
    return await make_processes(tmp_path, cast("Isolation", request.param))


@pytest.fixture(params=["openat2", "component by component"])
def files(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> LocalFiles:
    if request.param == "openat2":
        assert beneath.has_openat2()
    else:
        monkeypatch.setattr(beneath, "has_openat2", lambda: False)
    root = tmp_path / "ws"
    (root / "folder").mkdir(parents=True)
    (root / "folder" / "inner.txt").write_text("inner")
    (tmp_path / "secret.txt").write_text("secret")
    return LocalFiles(root)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user can reach and write to.

    It is none of pytest's: another session that starts closes those to other users.
    """
    with TemporaryDirectory(prefix="evoclaw-public-") as name:
        Path(name).chmod(0o777)
        yield Path(name)
