"""Tools as Python files in a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.ops import FileOps
from evoclaw.core.tools import Call
from evoclaw.executors.own_tools import OwnTools
from evoclaw.tools.fake import FakeOps

FIVE_LINES = '''from evoclaw import tool

@tool("weather", effect="read")
def forecast(city: str) -> str:
    """Say tomorrow's weather in a city."""
    return f"{city}: rain"
'''
COUNT = '''from evoclaw import tool
from evoclaw.core.ops import FileOps

@tool("file_read", effect="read")
async def size(files: FileOps, path: str) -> int:
    """Say how long a file is."""
    return len(await files.read(path))
'''


def put(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(text)
    file.chmod(0o644)


def own(folder: Path) -> OwnTools:
    return OwnTools(folder, given={FileOps: FakeOps({"a": "four"})}, reserved=["read"])


async def use(executor: OwnTools, name: str, **arguments: str) -> str:
    (tool,) = [one for one in executor.tools() if one.name == name]
    result = await executor.execute(Call("c", tool, arguments, "r.1.0.1", 5), lambda text: None)
    return result.text


async def test_a_python_tool_is_added_changed_and_removed_without_a_restart(
    tmp_path: Path,
) -> None:
    executor = own(tmp_path / "tools")
    assert list(executor.tools()) == []
    (tmp_path / "tools").mkdir()
    put(tmp_path / "tools", "weather.py", FIVE_LINES)
    assert await use(executor, "forecast", city="Bergen") == "Bergen: rain"
    assert executor.tools() is executor.tools()
    put(tmp_path / "tools", "weather.py", FIVE_LINES.replace(": rain", ": sunshine"))
    assert await use(executor, "forecast", city="Bergen") == "Bergen: sunshine"
    (tmp_path / "tools" / "weather.py").unlink()
    assert list(executor.tools()) == []


async def test_a_python_tool_gets_its_dependencies_injected(tmp_path: Path) -> None:
    put(tmp_path, "count.py", COUNT)
    assert await use(own(tmp_path), "size", path="a") == "4"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def broken(:", "SyntaxError"),
        ("import no_such_module_here", "ModuleNotFoundError"),
        ("raise KeyError('x')", "KeyError"),
        ("x = 1", "no function with @tool"),
        (FIVE_LINES.replace("forecast", "read"), "read"),
        (COUNT.replace("FileOps", "ExecOps").replace(".read(path)", ""), "needs ExecOps"),
        (FIVE_LINES.replace(": str)", ")"), "has no annotation"),
    ],
)
async def test_an_invalid_tool_file_is_reported_and_the_others_still_load(
    tmp_path: Path, text: str, reason: str
) -> None:
    put(tmp_path, "bad.py", text)
    put(tmp_path, "weather.py", FIVE_LINES)
    executor = own(tmp_path)
    assert [tool.name for tool in executor.tools()] == ["forecast"]
    assert list(executor.problems) == ["bad.py"]
    assert reason in executor.problems["bad.py"]


async def test_a_file_that_imports_the_tools_of_an_installed_package_offers_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "weather_tools"
    package.mkdir(parents=True)
    put(package, "__init__.py", FIVE_LINES)
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    (tmp_path / "tools").mkdir()
    executor = own(tmp_path / "tools")
    assert list(executor.tools()) == [], "a package that is only installed offers nothing"
    put(tmp_path / "tools", "weather.py", "from weather_tools import forecast\n")
    assert await use(executor, "forecast", city="Bergen") == "Bergen: rain"


async def test_a_tool_file_writable_by_others_is_not_loaded(tmp_path: Path) -> None:
    put(tmp_path, "weather.py", FIVE_LINES)
    (tmp_path / "weather.py").chmod(0o666)
    executor = own(tmp_path)
    assert list(executor.tools()) == []
    assert "chmod go-w" in executor.problems["weather.py"]


async def test_a_removed_tool_cannot_be_called(tmp_path: Path) -> None:
    put(tmp_path, "weather.py", FIVE_LINES)
    executor = own(tmp_path)
    (tool,) = executor.tools()
    (tmp_path / "weather.py").unlink()
    executor.tools()
    with pytest.raises(ToolFailure):
        await executor.execute(Call("c", tool, {"city": "x"}, "r.1.0.1", 5), lambda text: None)


async def test_other_dependencies_do_not_run_the_files_again(tmp_path: Path) -> None:
    counter = tmp_path / "runs"
    put(tmp_path, "count.py", f"with open({str(counter)!r}, 'a') as f:\n    f.write('x')\n{COUNT}")
    first = own(tmp_path)
    assert await use(first, "size", path="a") == "4"
    second = first.with_dependencies({FileOps: FakeOps({"a": "longer"})})
    assert await use(second, "size", path="a") == "6"
    assert list(first.with_dependencies({}).tools()) == [], "without what it depends on"
    assert counter.read_text() == "x"
