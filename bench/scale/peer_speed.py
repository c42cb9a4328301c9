"""Peers that store each step in PostgreSQL, over the same delay: two replies and a call in a run.

Their model and their tool are functions in their own process, and their runs have no watchers. A
peer that cannot be installed or measured is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.scale.delay_proxy import DelayProxy
from bench.suite.subjects import (
    ENVS,
    SWITCHES,
    CannotMeasure,
    Subject,
    environment,
    last_line,
    version_of,
)
from tests.support.postgres import Postgres

FOLDER = Path(__file__).parent / "peers"
PROCESS_COUNTS = (1, 2)
START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class StoringPeer:
    """A peer, the package whose version is reported, and what it needs."""

    name: str
    package: str
    packages: tuple[str, ...]
    script: str


PEERS = (
    StoringPeer(
        "langgraph-checkpoint-postgres, durability sync",
        "langgraph-checkpoint-postgres",
        ("langgraph", "langgraph-checkpoint-postgres", "psycopg[binary,pool]"),
        "langgraph_postgres",
    ),
    StoringPeer("dbos", "dbos", ("dbos",), "dbos_postgres"),
)


def measure_peers(options: argparse.Namespace, rtt_ms: float, fsync: str) -> list[dict[str, Any]]:
    """The turns per second of each peer with one and with two processes."""
    return [
        row for peer in PEERS for row in measure_peer(peer, options, rtt_ms=rtt_ms, fsync=fsync)
    ]


def measure_peer(
    peer: StoringPeer, options: argparse.Namespace, *, rtt_ms: float, fsync: str
) -> list[dict[str, Any]]:
    """The rows of one peer; one row with the reason if it cannot be measured."""
    shared: dict[str, Any] = {"name": peer.name, "rtt_ms": rtt_ms, "fsync": fsync}
    try:
        python = environment(f"{peer.package}-speed", list(peer.packages))
        subject = Subject(peer.name, python, FOLDER / f"{peer.script}.py")
        shared["version"] = version_of(subject, peer.package)
        return [
            shared | run_processes(subject, options, count, rtt_ms, fsync)
            for count in PROCESS_COUNTS
        ]
    except CannotMeasure as problem:
        return [{**shared, "processes": 0, "turns_per_s": None, "reason": str(problem)}]


def run_processes(
    subject: Subject, options: argparse.Namespace, count: int, rtt_ms: float, fsync: str
) -> dict[str, Any]:
    """One row: some processes over a new PostgreSQL."""
    with ExitStack() as stack:
        postgres = Postgres(settings=(f"fsync={fsync}",))
        stack.callback(postgres.close)
        postgres.start()
        proxy = stack.enter_context(DelayProxy(postgres.port))
        url = postgres.url.replace(f":{postgres.port}/", f":{proxy.port}/")
        at_once = max(options.at_once)
        plans = [
            {"url": url, "seconds": options.seconds, "at_once": at_once // count, "process": number}
            for number in range(count)
        ]
        # The first one creates the tables.
        errors = Path(stack.enter_context(TemporaryDirectory(prefix="peer-")))
        clients = [PeerProcess(subject, plan, errors, stack) for plan in plans]
        proxy.delay(rtt_ms)
        before = proxy.counts()
        for client in clients:
            client.start()
        found = [client.result(options.seconds) for client in clients]
        after = proxy.counts()
    turns = sum(figures["turns"] for figures in found)
    runs = max(1, turns // 2)
    return {
        "processes": count,
        "at_once": at_once,
        "turns_per_s": round(turns / max(figures["seconds"] for figures in found), 1),
        "round_trips_per_run": round((after["round_trips"] - before["round_trips"]) / runs, 1),
        "commits_per_run": round((after["committed"] - before["committed"]) / runs, 1),
    }


class PeerProcess:
    """A process of a peer that is ready to start."""

    def __init__(
        self, subject: Subject, plan: dict[str, Any], errors: Path, stack: ExitStack
    ) -> None:
        env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        env |= SWITCHES | {"PYTHONPATH": str(FOLDER), "HOME": str(ENVS), "PYTHONWARNINGS": "ignore"}
        # -P: a script must not be imported in place of the package it measures.
        argv = [str(subject.python), "-P", str(subject.script), json.dumps(plan)]
        pipe = subprocess.PIPE
        self._errors = stack.enter_context((errors / str(plan["process"])).open("w+"))
        self._process = subprocess.Popen(
            argv, env=env, stdin=pipe, stdout=pipe, stderr=self._errors, text=True
        )
        stack.callback(self._process.wait, 20)
        stack.callback(self._process.kill)
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], START_TIMEOUT_S)[0]:
            raise CannotMeasure(f"was not ready within {START_TIMEOUT_S:.0f} s")
        if output.readline() != "ready\n":
            raise CannotMeasure(self._reason())

    def start(self) -> None:
        """Let it start."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self, seconds: float) -> dict[str, float]:
        """Its figures."""
        try:
            output, _ = self._process.communicate(timeout=seconds + START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise CannotMeasure(f"did not end within {seconds + START_TIMEOUT_S:.0f} s") from None
        if self._process.returncode or not output.strip():
            raise CannotMeasure(self._reason())
        found: dict[str, float] = json.loads(output.strip().splitlines()[-1])
        return found

    def _reason(self) -> str:
        self._process.wait(20)
        self._errors.seek(0)
        return f"exit {self._process.returncode}: {last_line(self._errors.read())}"
