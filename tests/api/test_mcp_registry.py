"""`server.json`, which describes the MCP server to registries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from evoclaw.cli.mcp import mcp
from evoclaw.core.version import VERSION

ROOT = Path(__file__).parents[2]
INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "type": {"enum": ["named", "positional"]},
        "value": {"type": "string"},
        "default": {"type": "string"},
        "description": {"type": "string"},
        "format": {"enum": ["string", "number", "boolean", "filepath"]},
        "isRequired": {"type": "boolean"},
        "isSecret": {"type": "boolean"},
    },
    "additionalProperties": False,
}
INPUTS = {"type": "array", "items": INPUT}
VERSION_RULE = {"type": "string", "maxLength": 255, "not": {"const": "latest"}}
DOCUMENTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "$schema": {
            "const": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
        },
        "name": {"pattern": r"^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$", "maxLength": 200},
        "title": {"type": "string", "maxLength": 100},
        "description": {"type": "string", "minLength": 1, "maxLength": 100},
        "version": VERSION_RULE,
        "packages": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "registryType": {"const": "pypi"},
                    "identifier": {"type": "string"},
                    "version": VERSION_RULE,
                    "runtimeHint": {"enum": ["npx", "uvx", "docker", "dnx"]},
                    "runtimeArguments": INPUTS,
                    "packageArguments": INPUTS,
                    "environmentVariables": INPUTS,
                    "transport": {"properties": {"type": {"const": "stdio"}}},
                },
                "required": ["registryType", "identifier", "transport"],
                "additionalProperties": False,
            },
        },
        "remotes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "type": {"enum": ["streamable-http", "sse"]},
                    "url": {"pattern": r"^(https?://\S+|\{[a-zA-Z_][a-zA-Z0-9_]*\}\S*)$"},
                    "headers": INPUTS,
                    "variables": {"additionalProperties": INPUT},
                },
                "required": ["type", "url"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["name", "description", "version"],
    "additionalProperties": False,
}
"""The documented fields of a `server.json`, as far as ours uses them."""


def described() -> dict[str, Any]:
    return json.loads((ROOT / "server.json").read_text())


def test_the_description_has_the_fields_that_registries_document() -> None:
    problems = list(jsonschema_rs.validator_for(DOCUMENTED).iter_errors(described()))
    assert problems == []


def test_the_description_has_the_version_of_the_package() -> None:
    found = described()
    (package,) = found["packages"]
    (source,) = package["runtimeArguments"]
    assert found["version"] == package["version"] == VERSION
    assert source["value"] == f"evoclaw[mcp]=={VERSION}"


def test_the_described_command_exists() -> None:
    (package,) = described()["packages"]
    words = [argument.get("value", "") for argument in package["packageArguments"]]
    assert words[:2] == [mcp.name, "serve"]
    options = {name for each in mcp.commands["serve"].params for name in each.opts}
    assert {each["name"] for each in package["packageArguments"] if "name" in each} <= options


@pytest.mark.process
def test_serving_over_stdio_needs_no_package_of_the_service() -> None:
    of_the_service = ("litestar", "jwt", "segno", "prometheus_client")
    code = (
        "import sys, evoclaw.api.mcp_stdio, evoclaw.api.mcp.prompts, evoclaw.wiring.mcp_server\n"
        f"print([name for name in {of_the_service} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
