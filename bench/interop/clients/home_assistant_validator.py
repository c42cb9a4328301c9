"""Validates the descriptions in a file with Home Assistant's own schemas and templates."""

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from homeassistant.components.mqtt import schemas
from homeassistant.core import HomeAssistant
from homeassistant.helpers import frame
from homeassistant.helpers.template import Template


def problem_of(check: Any, value: Any) -> str:
    try:
        result = check(value)
    except Exception as problem:  # whatever the schema raises is the problem
        return repr(problem)[:300]
    lost = set(value) - set(result) if isinstance(value, dict) else set()
    return f"unknown keys: {sorted(lost)}" if lost else ""


def judge_device(name: str, described: dict[str, Any]) -> dict[str, str]:
    found = {name: problem_of(schemas.DEVICE_DISCOVERY_SCHEMA, described)}
    shared = {key: described[key] for key in ("device", "origin", "qos")}
    for key, component in described["components"].items():
        entity = {k: value for k, value in component.items() if k != "platform"} | shared
        platform = importlib.import_module(f"homeassistant.components.mqtt.{component['platform']}")
        found[f"{name}: {key}"] = problem_of(platform.DISCOVERY_SCHEMA, entity)
        # The schema for YAML files also refuses keys that it does not know.
        found[f"{name}: {key}, strictly"] = problem_of(platform.PLATFORM_SCHEMA_MODERN, entity)
    return found


async def main(given: dict[str, Any]) -> dict[str, str]:
    home = HomeAssistant("/nonexistent")
    frame.async_setup(home)
    found: dict[str, str] = {}
    for name, described in given["devices"].items():
        found |= judge_device(name, described)
    for rendered in given["templates"]:
        template = Template(rendered["template"], home)
        if rendered["of"] == "message":
            shown = template.async_render({"value": rendered["value"]}, parse_result=False)
        else:
            shown = template.async_render_with_possible_json_value(rendered["value"], "failed")
        fits = shown == rendered["shown"] or _json(shown) == rendered["shown"]
        found[f"template: {rendered['of']}"] = "" if fits else shown
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


print(json.dumps(asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))))
