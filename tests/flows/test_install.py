"""A user's installation: the wheel of this package, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from itertools import takewhile
from pathlib import Path
from threading import Timer
from urllib.request import urlopen

import pytest

from tests.support.command_line import Shell
from tests.support.model_server import model_server
from tests.support.terminal import terminal

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """Build the wheel as pip does, without the network."""
    code = "import sys; from flit_core import buildapi; print(buildapi.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        (sys.executable, "-c", code, str(folder)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.strip()


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new environment, where the dependencies are those of the tests."""
    venv.create(folder, with_pip=False)
    purelib = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    done = subprocess.run(
        (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install")
        + ("--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", str(wheel)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # After its own packages, so that the installed evoclaw is the one of the wheel.
    Path(purelib, "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin" / "evoclaw"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an installed wheel."""
    folder = tmp_path_factory.mktemp("install")
    return install(build_wheel(folder), folder / "environment")


@pytest.mark.slow
async def test_an_installed_wheel_leads_a_newcomer_to_the_first_answer(
    program: Path, tmp_path: Path
) -> None:
    home, workspace = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    workspace.mkdir()
    async with model_server() as models:
        models.scripts["Say hello in one word."] = "say Hello!"
        models.scripts["What is in this folder?"] = "say Nothing yet."
        shell = Shell(home, workspace, {"OLLAMA_HOST": "127.0.0.1:9", **models.env})
        async with terminal(shell, program=(str(program),)) as seen:
            for shown in ("Number [1]: ", "Folder [", "Service, y or n [n]: ", "Question ["):
                await seen.expect(shown)
                seen.type("\n")
            await seen.expect("Nothing yet.")
            assert await seen.wait_exit() == 0


@pytest.mark.slow
def test_an_installed_wheel_serves_the_dashboard(program: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path, tmp_path, {"EVOCLAW_MODEL": "vllm/none"})
    with subprocess.Popen(
        (program, "up", "--api-port", "0", "--no-edge"),
        cwd=tmp_path,
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as service:
        limit = Timer(60, service.kill)
        limit.start()
        try:
            assert service.stdout is not None
            said = list(takewhile(lambda line: "dashboard on" not in line, service.stdout))
            link = subprocess.run(
                (program, "page"),
                env=shell.environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert link.returncode == 0, [*said, link.stderr]
            with urlopen(link.stdout.partition("#")[0], timeout=60) as page:
                assert b"<title>" in page.read()
        finally:
            limit.cancel()
            service.terminate()


@pytest.mark.slow
def test_the_installed_package_is_the_one_of_the_wheel(program: Path, tmp_path: Path) -> None:
    where = subprocess.run(
        (program.with_name("python"), "-c", "import evoclaw; print(evoclaw.__file__)"),
        env={**os.environ, "PYTHONPATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout).is_relative_to(program.parents[1])
