"""Runs in the environment of `bfcl-eval`: lists entries of its data, and judges calls exactly.

`entries SEED COUNT` prints one JSON entry per line; `judge` reads lines `{"id", "calls"}` and
prints `{"id", "right", "why"}` for each. Only the checker and the data of the package are used; its
table of models, which would import the client of every vendor, is replaced by an empty one.
"""

from __future__ import annotations

import json
import random
import sys
import types
from importlib import metadata
from pathlib import Path
from typing import Any

CATEGORIES = {
    "simple": ("simple_python", "simple"),
    "multiple": ("multiple",),
    "parallel": ("parallel",),
    "irrelevance": ("irrelevance",),
}
"""Our name: the names of the data in versions of the package."""


def folder() -> Path:
    """The data of the package."""
    files = metadata.files("bfcl-eval") or []
    found = next(file for file in files if file.name.endswith("_multiple.json"))
    return Path(str(found.locate())).parent


def data(category: str) -> dict[str, dict[str, Any]]:
    """The entries of a category by id, with their answers."""
    base = folder()
    for name in CATEGORIES[category]:
        for path in sorted(base.glob(f"BFCL_v[0-9]_{name}.json")):
            entries = {entry["id"]: entry for entry in _lines(path)}
            answers = base / "possible_answer" / path.name
            if answers.exists():
                for answer in _lines(answers):
                    entries[answer["id"]]["answer"] = answer["ground_truth"]
            return entries
    raise SystemExit(f"bfcl-eval has no data for {category}")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def entries(seed: int, count: int) -> None:
    """Print a sample: the same number of each category."""
    for category in CATEGORIES:
        found = data(category)
        chosen = random.Random(f"{seed} {category}").sample(
            sorted(found), min(count // len(CATEGORIES), len(found))
        )
        for name in chosen:
            print(json.dumps({"category": category, **found[name]}))


class _NoModels(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return types.SimpleNamespace(underscore_to_dot=False)


def judge() -> None:
    """Judge the calls that come in."""
    table = types.ModuleType("bfcl_eval.constants.model_config")
    table.MODEL_CONFIG_MAPPING = _NoModels()  # type: ignore[attr-defined]
    sys.modules[table.__name__] = table
    from bfcl_eval.constants.enums import Language  # type: ignore[import-not-found]
    from bfcl_eval.eval_checker.ast_eval.ast_checker import (  # type: ignore[import-not-found]
        ast_checker,
    )

    known = {category: data(category) for category in CATEGORIES}
    for line in sys.stdin:
        asked = json.loads(line)
        category, calls = asked["category"], asked["calls"]
        if category == "irrelevance":
            right, why = not calls, "a function was called" if calls else ""
        else:
            entry = known[category][asked["id"]]
            verdict = ast_checker(
                entry["function"], calls, entry["answer"], Language.PYTHON, category, "any"
            )
            right, why = verdict["valid"], str(verdict.get("error", ""))[:200]
        print(json.dumps({"id": asked["id"], "right": bool(right), "why": why}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "entries":
        entries(int(sys.argv[2]), int(sys.argv[3]))
    else:
        judge()
