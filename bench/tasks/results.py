"""The stored results: a row for each task and model, written as soon as it is known."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeAlias

from bench.tasks.variants import DEFAULT_TOOLS, VARIANT_PART

RESULTS = Path(__file__).with_name("results.json")
Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = dict[str, Row]


class Results:
    """A file of results; an interrupted measurement continues where it was."""

    def __init__(self, path: Path = RESULTS, *, again: bool = False) -> None:
        """Read the file; `again` measures every row once more."""
        self._path, self._again = path, again
        self._fresh: set[tuple[int, str]] = set()
        self.found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def model(self, name: str, part: str = "tasks") -> Rows:
        """The rows of a model: of its `tasks`, of `bfcl`, or of a variant."""
        about = self.found.setdefault("models", {}).setdefault(name, {})
        return about.setdefault(part, {})

    def peer(self, framework: str, model: str) -> Row:
        """What a framework did with a model: its version and its tasks."""
        models = self.found.setdefault("peers", {}).setdefault(framework, {})
        return models.setdefault(model, {"tasks": {}})

    def is_known(self, rows: Rows, name: str, digest: str) -> bool:
        """Whether the row of this very task is stored, and not to be measured again."""
        if self._again and (id(rows), name) not in self._fresh:
            return False
        return rows.get(name, {}).get("digest") == digest

    def store(self, rows: Rows, name: str, row: Row) -> None:
        """Keep a row, on disk before this returns."""
        rows[name] = row
        self._fresh.add((id(rows), name))
        self.found["measured"] = measured()
        self.save()

    def forget_other_tasks(self, names: Collection[str]) -> None:
        """Forget the rows of tasks that there are no more."""
        parts = [
            rows
            for about in self.found.get("models", {}).values()
            for part, rows in about.items()
            if part != "bfcl"
        ]
        for models in self.found.get("peers", {}).values():
            parts += [about["tasks"] for about in models.values()]
        for rows in parts:
            for name in [name for name in rows if name not in names]:
                del rows[name]

    def save(self) -> None:
        """Write the file; a crash leaves the old one or the new one."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self.found, indent=1, sort_keys=True) + "\n")
        new.replace(self._path)


def measured() -> str:
    """The date and the machine."""
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {platform.machine()}, {system}, "
        f"Python {platform.python_version()}"
    )


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """The last line of the benchmark."""
    models = found.get("models", {})
    return {
        "models": {name: model_summary(about) for name, about in models.items()},
        "peers": {
            framework: peer_summary(measured, models)
            for framework, measured in found.get("peers", {}).items()
        },
    }


def model_summary(about: dict[str, Rows]) -> dict[str, Any]:
    """The totals of a model."""
    tasks, bfcl = about.get("tasks", {}), about.get("bfcl", {})
    return {
        "tasks": len(tasks),
        "solved": count(tasks, "solved"),
        "wrong_done": count(tasks, "wrong_done"),
        "bfcl": len(bfcl),
        "bfcl_right": count(bfcl, "right"),
        "seconds": round(total(tasks, "seconds") + total(bfcl, "seconds"), 1),
    }


def peer_summary(measured: dict[str, Row], models: dict[str, dict[str, Rows]]) -> dict[str, Any]:
    """The totals of a framework, with the model that did the most tasks, and of EvoClaw on them."""
    model = max(measured, key=lambda name: len(measured[name]["tasks"]))
    tasks = measured[model]["tasks"]
    few_tools, default_tools = same_tasks(tasks, models.get(model, {}))
    return {
        "model": model,
        "tasks": len(tasks),
        "solved": count(tasks, "solved"),
        "evoclaw_few_tools": count(few_tools, "solved"),
        "evoclaw_default_tools": count(default_tools, "solved"),
    }


def same_tasks(tasks: Collection[str], about: dict[str, Rows]) -> tuple[Rows, Rows]:
    """Of a model's results, those of some tasks: with few tools, and with its default tools."""
    parts = (about.get(part, {}) for part in ("tasks", VARIANT_PART + DEFAULT_TOOLS.name))
    few, default = ({name: part[name] for name in tasks if name in part} for part in parts)
    return few, default


def count(rows: Rows, key: str) -> int:
    """How many rows have this set."""
    return sum(bool(row.get(key)) for row in rows.values())


def total(rows: Rows, key: str) -> float:
    """The sum of a number over all rows."""
    return sum(row.get(key, 0) for row in rows.values())
