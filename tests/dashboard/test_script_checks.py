"""The types of the dashboard's scripts: current, and applied to every script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.dashboard.api_types import PATH, api_types
from tests.dashboard.checks.__main__ import DASHBOARD, HERE

STATIC = DASHBOARD / "static"
SCRIPTS = sorted(path for path in STATIC.rglob("*.js") if "vendor" not in path.parts)


def shown(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


def test_the_types_of_the_api_are_current() -> None:
    assert api_types() == PATH.read_text(encoding="utf-8"), "run: make docs"


def test_a_path_has_the_type_of_its_most_exact_route() -> None:
    lines = [line.strip() for line in api_types().splitlines()]

    exact = lines.index('P extends "/v1/fleet/delegations" ? DelegationList :')
    assert exact < lines.index("P extends `/v1/fleet/${string}` ? EdgeView :")
    longer = lines.index("P extends `/v1/runs/${string}/receipts` ? ReceiptList :")
    assert longer < lines.index("P extends `/v1/runs/${string}` ? RatedRun :")


@pytest.mark.parametrize("path", SCRIPTS, ids=shown)
def test_every_script_is_checked_in_editors_too(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("// @ts-check\n")
    assert "@ts-ignore" not in path.read_text() and "@ts-nocheck" not in path.read_text()


def test_types_are_checked_strictly_and_packages_are_pinned() -> None:
    options = json.loads((DASHBOARD / "tsconfig.json").read_text())["compilerOptions"]
    pinned = json.loads((HERE / "package.json").read_text())["dependencies"]

    assert options["strict"] and options["allowJs"]
    assert all(version[0].isdigit() for version in pinned.values())
