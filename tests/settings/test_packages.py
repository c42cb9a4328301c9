"""Tools and providers of installed Python packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evoclaw.config.shared_settings import DEFAULT_MAX_RETRIES
from evoclaw.core.errors import ConfigError
from evoclaw.executors.own_tools import OwnTools
from evoclaw.providers.http import Http, RetryPolicy
from evoclaw.providers.registry import ProviderOptions, configured_provider
from evoclaw.wiring.packages import package_providers, tool_loaders
from tests.seat.test_extensions import install

TOOL = '''from evoclaw import tool


@tool("dice", effect="read", resources=(){extra})
def {name}() -> str:
    """Roll the dice."""
    return "4"
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def put(site: Path, module: str, source: str, points: str) -> str:
    """Install a package, and return its name."""
    install(site, f"pkg-{module}", module, source, points)
    sys.modules.pop(module, None)
    return f"pkg-{module}"


def problems_of(*packages: str) -> str:
    own = OwnTools(None, given={}, reserved={"read"}, packages=tool_loaders(packages))
    assert not own.tools()
    return "; ".join(own.problems.values())


def test_an_entry_point_names_a_tool_or_a_module_of_tools(site: Path) -> None:
    name = put(site, "pk1", TOOL.format(name="roll", extra=""), "[evoclaw.tools]\nall = pk1\n")
    own = OwnTools(site / "none", given={}, packages=tool_loaders([name]))
    assert [tool.name for tool in own.tools()] == ["roll"]
    assert own.tools() is own.tools()


@pytest.mark.parametrize(
    ("source", "points", "reason"),
    [
        ("raise OSError('broken')", "[evoclaw.tools]\nx = pk2:x\n", "OSError: broken"),
        ("x = 3", "[evoclaw.tools]\nx = pk2:x\n", "neither a function with @tool nor a module"),
        ("x = 3", "[console_scripts]\nx = pk2:x\n", "no entry point of 'evoclaw.tools'"),
        (
            TOOL.format(name="roll", extra=", isolated=True"),
            "[evoclaw.tools]\nx = pk2:roll\n",
            "imported into this process",
        ),
        (TOOL.format(name="read", extra=""), "[evoclaw.tools]\nx = pk2:read\n", "'read'"),
    ],
)
def test_a_package_that_cannot_be_used_is_left_out_with_the_reason(
    site: Path, source: str, points: str, reason: str
) -> None:
    assert reason in problems_of(put(site, "pk2", source, points))


def test_code_that_calls_can_change_is_not_loaded(site: Path) -> None:
    name = put(site, "pk5", TOOL.format(name="roll", extra=""), "[evoclaw.tools]\nx = pk5:roll\n")
    own = OwnTools(None, given={}, packages=tool_loaders([name], [site.parent]))
    assert not own.tools()
    assert "where calls can change it" in own.problems[f"package {name}"]
    assert "pk5" not in sys.modules
    elsewhere = tool_loaders([name], [site / "work"])
    assert OwnTools(None, given={}, packages=elsewhere).tools()


def test_a_package_that_is_not_installed_is_named() -> None:
    assert "'no-such-thing' is not installed" in problems_of("no-such-thing")
    with pytest.raises(ConfigError, match="'no-such-thing' is not installed"):
        package_providers(["no-such-thing"])


@pytest.mark.parametrize("prefix", ["openai", "embedded", "local"])
def test_a_package_cannot_replace_a_known_provider(site: Path, prefix: str) -> None:
    points = f"[evoclaw.providers]\n{prefix} = pk3:make\n"
    name = put(site, "pk3", "def make(model, *, http, env): ...", points)
    with pytest.raises(ConfigError, match="there is one of that name already"):
        package_providers([name])


@pytest.mark.parametrize("body", ["raise KeyError('X_API_KEY')", "return 3"])
async def test_a_provider_that_cannot_be_created_is_an_error_of_the_settings(
    site: Path, body: str
) -> None:
    source = f"def make(model, *, http, env):\n    {body}\n"
    name = put(site, "pk4", source, "[evoclaw.providers]\nacme = pk4:make\n")
    options = ProviderOptions(factories=package_providers([name]))
    async with Http() as http:
        with pytest.raises(ConfigError, match="'green'"):
            configured_provider("acme/green", http, {}, options)


def test_the_default_number_of_retries_is_the_same_everywhere() -> None:
    assert RetryPolicy().attempts == DEFAULT_MAX_RETRIES + 1
