"""Who drives which run: engines on one PostgreSQL, under kill -9, SIGSTOP and restarts.

`python -m bench.engines.run [ENGINE...]`; the last line is one JSON object. `jobs` is ours
as it is. procrastinate alone, and DBOS, are taken from a virtual environment of their own,
`.bench/engines/venv`.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
from bench.engines.judge import aborts, judged, takeovers
from bench.engines.steps import EACH, SESSIONS, Plan, make_tables
from tests.support.postgres import Postgres

ROOT = Path(__file__).parents[2]
OTHERS = ROOT / ".bench/engines/venv/bin/python"
LOGS = ROOT / ".bench/engines/logs"
RUNS, STALL, PATIENCE = SESSIONS * EACH, 5.0, 90.0
PAGE, TICK = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
DRIVERS = ("a", "b", "c")
FLUSH = 12.0
"""Seconds until an idle connection has told the server what it counted."""
IMPORT = """
import time, psycopg
def used(): return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6, time.process_time()
before = used()
import {}
after = used()
print(after[1] - before[1], after[0] - before[0])
"""


@dataclass(frozen=True)
class Engine:
    """What is measured."""

    module: str
    python: Path
    imports: str
    variant: str = ""

    def start(self, plan: Plan, *words: str, log: Any = subprocess.DEVNULL) -> Any:
        """A process of it."""
        told = json.dumps(asdict(replace(plan, variant=self.variant)))
        command = [self.python, "-m", f"bench.engines.{self.module}", told, *words]
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def do(self, plan: Plan, *words: str) -> None:
        """Wait for something of it."""
        with (LOGS / f"{self.module}.log").open("ab") as log:
            if self.start(plan, *words, log=log).wait(120):
                raise RuntimeError(f"{self.module} {words} failed: see {LOGS}")


HERE = Path(sys.executable)
OURS = "evoclaw.store.runs.queue, evoclaw.store.databases.postgres"
ENGINES = {
    "leases": Engine("on_leases", HERE, OURS),
    "leases_far": Engine("on_leases", HERE, OURS, "far"),
    "leases_skewed": Engine("on_leases", HERE, OURS, "skewed"),
    "jobs": Engine("on_jobs", HERE, f"{OURS}, evoclaw.store.runs.job_engine"),
    "jobs_far": Engine("on_jobs", HERE, f"{OURS}, evoclaw.store.runs.job_engine", "far"),
    "jobs_skewed": Engine("on_jobs", HERE, f"{OURS}, evoclaw.store.runs.job_engine", "skewed"),
    "procrastinate": Engine("on_procrastinate", OTHERS, "procrastinate, psycopg_pool"),
    "procrastinate_fenced": Engine("on_procrastinate", OTHERS, "procrastinate", "fenced"),
    "dbos": Engine("on_dbos", OTHERS, "dbos"),
}


def ask(url: str, statement: Any) -> Any:
    """One value."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement).fetchone()
        return row[0] if row else None


def clock(url: str) -> Any:
    """The time, by the clock that the rows have."""
    return ask(url, "SELECT clock_timestamp()")


def ended(url: str) -> int:
    """How many runs have."""
    try:
        return ask(url, "SELECT count(*) FROM bench.runs WHERE ended")
    except psycopg.OperationalError:
        return 0


def steps(url: str, driver: str) -> int:
    """How many steps a driver has done."""
    return ask(url, f"SELECT count(*) FROM bench.steps WHERE driver = '{driver}'")


def until(condition: Any, patience: float = PATIENCE, pause: float = 0.05) -> bool:
    """Wait for something; False if it does not come."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


@dataclass
class Scene:
    """An empty database, runs that are asked for, and three drivers."""

    engine: Engine
    server: Postgres
    plan: Plan
    drivers: dict[str, Any]
    before: tuple[int, float] = (0, 0.0)

    def counted(self) -> tuple[int, float]:
        """Commits in this database, bytes of log on the server; asked for from another one."""
        name = self.url.rpartition("/")[2]
        commits = f"SELECT xact_commit FROM pg_stat_database WHERE datname = '{name}'"
        log = ask(self.server.url, "SELECT pg_current_wal_lsn() - '0/0'")
        return ask(self.server.url, commits), float(log)

    @property
    def url(self) -> str:
        """Of the database."""
        return self.plan.url

    def verdict(self, gone: int = 0) -> dict[str, Any]:
        """What the judge says when all have ended, or when patience has."""
        until(lambda: ended(self.url) >= RUNS - gone, 60)
        return {**judged(self.url), "ended": ended(self.url)}


@contextmanager
def scene(engine: Engine, server: Postgres, pause: float) -> Iterator[Scene]:
    """Three drivers at work; they begin together."""
    name = f"bench{time.monotonic_ns()}"
    ask_url = server.url
    with psycopg.connect(ask_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    plan = Plan(ask_url.rsplit("/", 1)[0] + f"/{name}", "", pause, STALL)
    make_tables(plan.url)
    engine.do(replace(plan, name="put"), "put")
    drivers: dict[str, Any] = {}
    made = Scene(engine, server, plan, drivers)
    made.before = made.counted()
    with (LOGS / f"{engine.module}.log").open("ab") as log:
        try:
            for driver in DRIVERS:
                drivers[driver] = engine.start(replace(plan, name=driver), "drive", log=log)
            yield made
        finally:
            for process in drivers.values():
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()


def held(pid: int) -> tuple[float, float]:
    """Processor seconds and MB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK, int(fields[21]) * PAGE / 1e6


def speed(engine: Engine, server: Postgres) -> dict[str, Any]:
    """All runs, nothing in the way; and what three idle drivers ask of the database."""
    with scene(engine, server, 0.02) as at:
        until(lambda: ended(at.url) >= RUNS, pause=0.5)
        busy = [held(process.pid) for process in at.drivers.values()]
        time.sleep(FLUSH)
        total, written = at.counted()
        time.sleep(FLUSH)
        idle = (at.counted()[0] - total) / FLUSH
        span = "SELECT extract(epoch FROM max(at) - min(at))::float FROM bench.steps"
        return {
            **at.verdict(),
            "runs_per_s": round(RUNS / ask(at.url, span), 1),
            "commits_per_run": round((total - at.before[0] - idle * FLUSH) / RUNS, 1),
            "wal_kb_per_run": round((written - at.before[1]) / 1024 / RUNS, 1),
            "idle_commits_per_s": round(idle, 1),
            "cpu_ms_per_run": round(sum(cpu for cpu, _ in busy) / RUNS * 1000, 1),
            "rss_mb": round(max(size for _, size in busy), 1),
        }


def killed(engine: Engine, server: Postgres) -> dict[str, Any]:
    """One driver is killed in the middle of its runs."""
    with scene(engine, server, 0.2) as at:
        until(lambda: steps(at.url, "b") > 20)
        at.drivers["b"].kill()
        at.drivers["b"].wait()
        moment = clock(at.url)
        verdict = at.verdict()
        return {**verdict, **_spread(takeovers(at.url, "b", moment))}


def stopped(engine: Engine, server: Postgres) -> dict[str, Any]:
    """One driver sleeps until its runs are others', then goes on as if nothing had been."""
    with scene(engine, server, 0.5) as at:
        until(lambda: steps(at.url, "b") > 15)
        moment = clock(at.url)
        at.drivers["b"].send_signal(signal.SIGSTOP)
        until(lambda: takeovers(at.url, "b", moment))
        time.sleep(0.3)  # so that it wakes while the others are in the middle of its runs
        at.drivers["b"].send_signal(signal.SIGCONT)
        verdict = at.verdict()
        return {**verdict, **_spread(takeovers(at.url, "b", moment))}


def restarted(engine: Engine, server: Postgres) -> dict[str, Any]:
    """The database goes away for two seconds, as after a crash."""
    with scene(engine, server, 0.2) as at:
        until(lambda: steps(at.url, "b") > 20)
        server.stop(signal.SIGQUIT)
        time.sleep(2)
        server.start()
        back = time.monotonic()
        done = ended(at.url)
        until(lambda: ended(at.url) > done + 5)
        moving = time.monotonic() - back
        return {**at.verdict(), "moving_after_s": round(moving, 1)}


def aborted(engine: Engine, server: Postgres) -> dict[str, Any]:
    """Three runs that go on, and one that waits, are cancelled."""
    with scene(engine, server, 1.0) as at:
        until(lambda: ask(at.url, "SELECT count(*) FROM bench.steps") >= SESSIONS)
        some = ("s00-r00", "s01-r00", "s02-r00", "s03-r05")
        engine.do(replace(at.plan, name="cancel"), "cancel", *some)
        until(lambda: None not in list(aborts(at.url).values())[:3], 15)
        waited = "SELECT count(*) FROM bench.steps WHERE run = 's03-r05'"
        found = {"abort_s": aborts(at.url), "steps_of_the_waiting_one": ask(at.url, waited)}
        return {**found, "overlapped": judged(at.url)["overlapped"]}


def _spread(times: list[float]) -> dict[str, Any]:
    if not times:
        return {"takeover_s": None}
    spread = [times[0], round(statistics.median(times), 2), times[-1]]
    return {"takeover_s": spread, "held": len(times)}


def weighed(engine: Engine) -> dict[str, Any]:
    """Processor time and memory of importing it, beyond psycopg; medians of five."""
    command = [engine.python, "-c", IMPORT.format(engine.imports)]
    done = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(5)]
    figures = [[float(word) for word in one.stdout.split()] for one in done]
    seconds, size = (statistics.median(column) for column in zip(*figures, strict=True))
    return {"import_ms": round(seconds * 1000), "import_mb": round(size, 1)}


SCENES = {
    "speed": speed,
    "killed": killed,
    "stopped": stopped,
    "restarted": restarted,
    "aborted": aborted,
}


def main() -> None:
    """Measure what was named, or all."""
    words = sys.argv[1:]
    engines = [name for name in ENGINES if name in words] or list(ENGINES)
    scenes = [name for name in SCENES if name in words] or list(SCENES)
    LOGS.mkdir(parents=True, exist_ok=True)
    server, told = Postgres(), dict[str, Any]()
    server.start()
    try:
        for name in engines:
            told[name] = weighed(ENGINES[name])
            for one in scenes:
                told[name][one] = SCENES[one](ENGINES[name], server)
                print(name, one, json.dumps(told[name][one]), file=sys.stderr, flush=True)
    finally:
        server.close()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
