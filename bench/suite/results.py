"""The result of a run as it is stored, and merged into the stored results."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.suite.parts import Outcome, figure
from bench.suite.rows import ROWS, Row
from bench.suite.samples import Samples
from bench.suite.subjects import CannotMeasure, Subject, ours, peer, version_of

PROGRAMS = {
    "NATS": ("nats-server", {"roundtrip", "footprint", "many"}),
    "Mosquitto": ("mosquitto", {"mosquitto"}),
    "PostgreSQL": ("psql", {"postgres"}),
    "bubblewrap": ("bwrap", {"sandboxes"}),
}
"""Programs whose version matters, and the parts that use them."""
MERGED_KEYS = ("versions", "parts", "floors")
"""Mappings that are merged key by key."""


def machine() -> dict[str, object]:
    """The machine of the measurement."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def versions(peers: Mapping[str, Subject], parts: Mapping[str, Outcome]) -> dict[str, str]:
    """The versions of EvoClaw, its dependencies, the peers and the programs."""
    own = ours("ours")
    found = {name: _version(own, name) for name in ("evoclaw", "msgspec", "aiohttp")}
    if parts:
        found |= {name: _version(own, name) for name in ("gmqtt", "psycopg", "mcp")}
        found["SQLite"] = sqlite3.sqlite_version
    found |= {name: _version(subject, name) for name, subject in peers.items()}
    if "roundtrip" in parts and "aiomqtt_1_per_s" in parts["roundtrip"].figures:
        found["aiomqtt"] = _version(peer("aiomqtt"), "aiomqtt")
    for name, (program, users) in PROGRAMS.items():
        if users & set(parts) and (version := _program_version(program)):
            found[name] = version
    return found


def _version(subject: Subject, package: str) -> str:
    """The version, or "unknown": a missing version must not discard the measurement."""
    try:
        return version_of(subject, package)
    except CannotMeasure:
        return "unknown"


def _program_version(program: str) -> str:
    where = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if where is None:
        return ""
    argument = "-h" if program == "mosquitto" else "--version"
    done = subprocess.run([where, argument], capture_output=True, text=True, timeout=20)
    found = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return found[0] if found else ""


def row_of(row: Row, samples: Samples, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """One row, from the samples or from the outcome of a part."""
    known = {"name": row.name, "unit": row.unit, "better": row.better}
    if row.figures[0]:
        figures = outcomes[row.kind].figures if row.kind in outcomes else {}
        values = [figure(figures, path) for path in row.figures]
        peers = {name: figure(figures, path) for name, path in row.others.items()}
    else:
        values = [
            samples.value(row.name, subject, f"stream_{subject}") for subject in ("ours", "floor")
        ]
        peers = {name: samples.value(row.name, name) for name in row.peers}
    return {**known, "ours": values[0], "floor": values[1], "peers": peers}


def result(
    samples: Samples,
    wanted: Sequence[Row],
    peers: Mapping[str, Subject],
    outcomes: Mapping[str, Outcome],
) -> dict[str, Any]:
    """The whole result."""
    found: dict[str, Any] = {
        "machine": machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": versions(peers, outcomes),
        "rows": [row_of(row, samples, outcomes) for row in wanted],
        "problems": samples.problems,
        "parts": {
            name: {"seconds": one.seconds, "met": one.met, "why": one.why}
            for name, one in outcomes.items()
        },
    }
    if new := samples.value("turn", "floor_cached"):
        found["floors"] = {"turn_new": new}
    if "growth" in outcomes:
        found["curves"] = list(outcomes["growth"].figures.get("curves", ()))
    if "soak" in outcomes:
        found["soak"] = dict(outcomes["soak"].figures)
    return found


def merged(before: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The new result, completed with stored rows that were not measured now.

    Rows that no longer exist are dropped; `dates` has the date of each older row.
    """
    known = [row.name for row in ROWS]
    new = {row["name"]: row for row in found["rows"]}
    old = {row["name"]: row for row in before["rows"] if row["name"] in known}
    dates = dict.fromkeys(old, before["date"]) | before.get("dates", {})
    dates |= dict.fromkeys(new, found["date"])
    measured = {f"({row.kind})" for row in ROWS if row.name in new}
    problems = {
        name: why
        for name, why in before["problems"].items()
        if name not in found["versions"] and not any(kind in name for kind in measured)
    }
    return {
        **before,
        **found,
        **{name: {**before.get(name, {}), **found.get(name, {})} for name in MERGED_KEYS},
        "problems": problems | found["problems"],
        "rows": [(old | new)[name] for name in known if name in old | new],
        "dates": {name: date for name, date in dates.items() if date != found["date"]},
    }
