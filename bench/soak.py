"""Soak test: 10,000 turns in one process; does anything leak? Ends with one JSON object.

The process is a whole `evoclaw up`: a broker, an orchestrator, its service, and an edge in its own
process, whose commands are processes, too. A model server runs in another process. Runs in many
sessions are started over HTTP and watched; some watchers disconnect early, some runs are cancelled,
some calls fail, and some time out. After a warm-up, and at the end, the benchmark waits until the
process is idle and counts memory, tasks, open files, threads, processes and temporary files. Memory
may grow by 5 %, everything else must be unchanged; and after shutdown nothing may be left. The exit
code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from tests.support.model_server import NAME
from tests.support.postgres import Postgres

ROOT = Path(__file__).parent.parent
ALLOWED = 0.05
"""The share by which memory may grow after the warm-up."""
IDLE_TIMEOUT_S = 60.0
IDLE_POLL_INTERVAL_S, IDLE_POLLS = 0.25, 80
"""The process is idle after this many equal polls; idle connections have been closed by then."""
WORKERS = 8
PER_SESSION = 10
"""Runs that are started in a session before a new one is opened."""
SETTINGS = """
[server]
requests_per_minute = 1000000
burst = 100000

[audit]
ship_seconds = 1

[rates]
per_minute = 100000
burst = 100000

[[agents]]
id = "evoclaw"
capabilities = ["*"]
autonomy = "full"
"""
"""High limits for the single caller; the audit ships every second, so also in the warm-up."""
TALK = "words 20"
NOTED = 'words 5 call todowrite {{"todos": [{{"content": "step {}", "status": "pending"}}]}}'
LONG = "\n".join([*map(NOTED.format, range(9)), "words 10"])
SHELL = 'call bash {"command": "echo x"}\nsay done'
EVERYBODY = (
    'call edge_call {"agent_id": "*", "action": "bash", "params": {"command": "true"}}\nsay done'
)
FAILING = 'call nope {}\ncall bash {"command": "exit 3"}\nsay done'
LATE = 'call bash {"command": "sleep 5", "timeout_ms": 200}\nsay done'
CANCELLED = "wait {gate} 10"
KINDS = {TALK: 3, LONG: 15, SHELL: 2, EVERYBODY: 1, FAILING: 1, LATE: 1, CANCELLED: 1}
"""The kinds of runs, and their relative frequency."""


class Counts(dict[str, int]):
    """The number of each resource that could leak, except memory."""

    @classmethod
    def now(cls, temporary: Path) -> Counts:
        """The current counts."""
        return cls(
            tasks=len(asyncio.all_tasks()),
            fds=len(list(Path("/proc/self/fd").iterdir())) - 1,
            threads=threading.active_count(),
            processes=len(descendants(os.getpid())),
            files=sum(1 for path in temporary.rglob("*") if path.is_file()),
        )

    def beyond(self, before: Counts) -> list[str]:
        """The resources with a higher count than before."""
        return [name for name, count in self.items() if count > before[name]]


def open_files() -> list[str]:
    """The names of the open files of this process."""
    found: list[str] = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(path.readlink()))
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """All descendants of a process."""
    above: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                above[int(path.parent.name)] = int(fields[1])
    found, level = list[int](), {pid}
    while level:
        level = {one for one, parent in above.items() if parent in level}
        found += level
    return found


def resident_mb() -> float:
    """This process's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def held_mb() -> tuple[float, float]:
    """The memory in use, and the memory including what the C library holds free.

    The amount that the C library holds free varies from minute to minute.
    """
    gc.collect()
    with_spare = resident_mb()
    with suppress(AttributeError):  # other C libraries have no malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    return resident_mb(), with_spare


@contextmanager
def model_server() -> Iterator[dict[str, str]]:
    """Run a model server in its own process; yields the variables that make EvoClaw use it."""
    argv = [sys.executable, "-m", "tests.support.model_server"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
            yield {"EVOCLAW_MODEL": f"vllm/{NAME}", "VLLM_BASE_URL": url}
        finally:
            process.kill()


@asynccontextmanager
async def application(folder: Path, models: dict[str, str], store: str) -> AsyncGenerator[Soak]:
    """Run `evoclaw up` in this process."""
    from evoclaw.wiring.application import open_application

    home, workspace = folder / "home", folder / "work"
    for one in (home, workspace):
        one.mkdir(mode=0o700)
    kept = f'[store]\nurl = "{store}"\n' if store else ""
    (home / "evoclaw.toml").write_text(kept + SETTINGS)
    env = {**os.environ, **models, "EVOCLAW_HOME": str(home), "HOME": str(folder)}
    os.environ.update(env)
    async with open_application(
        host="127.0.0.1", port=0, engine="nats", agent_id="local", workspace=workspace, model="",
        env=env, api={"port": 0},
    ) as up:  # fmt: skip
        await up.orchestrator.wait_for("local", IDLE_TIMEOUT_S)
        said = json.loads((home / "api.json").read_text())
        yield Soak(said["url"], said["token"], folder / "tmp")


class Soak:
    """The HTTP clients, and the outcomes of their runs."""

    _http: aiohttp.ClientSession

    def __init__(self, url: str, token: str, temporary: Path) -> None:
        self._url, self._temporary = url, temporary
        self._headers = {"authorization": f"Bearer {token}"}
        self.turns = 0
        self.stops: Counter[str] = Counter()
        self._chance = random.Random(8)
        self._untried = list(KINDS)
        """Kinds of runs that come first, so that the warm-up has every kind."""

    async def run_until(self, turns: int) -> None:
        """Start runs until this many turns were made in total; then close the connections."""
        timeout = aiohttp.ClientTimeout(IDLE_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as self._http,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(WORKERS):
                group.create_task(self._work(turns))

    async def _work(self, turns: int) -> None:
        session, left = "", 0
        while self.turns < turns:
            if not left:
                session, left = "", PER_SESSION
            left -= 1
            if self._untried:
                kind = self._untried.pop()
            else:
                (kind,) = self._chance.choices(list(KINDS), list(KINDS.values()))
            session = await self._run(kind, session)

    async def _run(self, kind: str, session: str) -> str:
        message = kind.format(gate=self._chance.random()) if kind is CANCELLED else kind
        body = {"message": message, **({"session_id": session} if session else {})}
        run = await self._ask("POST", "/v1/runs", body)
        path = f"/v1/runs/{run['run_id']}"
        if kind is CANCELLED:
            await self._watch(path, until=b"text_delta")
            await self._ask("POST", f"{path}/cancel")
        elif self._chance.random() < 0.1:
            await self._watch(path, until=b"\n")  # a watcher that disconnects early
        await self._watch(path)
        ended = await self._ask("GET", path)
        self.turns += ended.get("turns", 0)
        self.stops[ended["stop"]] += 1
        return str(run["session_id"])

    async def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        url = self._url + path
        async with self._http.request(method, url, json=body, headers=self._headers) as answer:
            if answer.status >= 400:
                raise SystemExit(f"{method} {path}: {answer.status} {await answer.text()}")
            return await answer.json() if answer.content_length != 0 else {}

    async def _watch(self, path: str, until: bytes = b"") -> None:
        """Watch a run to its end, or until a text was received."""
        url = f"{self._url}{path}/events"
        async with self._http.get(url, headers=self._headers) as answer:
            seen = b""
            async for chunk in answer.content.iter_any():
                seen += chunk if until else b""
                if until and until in seen:
                    return

    async def wait_idle(self, like: Counts | None = None) -> Counts:
        """Wait until the process is idle, or its counts are at most `like`; the counts."""
        found, same, end = self._now(), 0, time.monotonic() + IDLE_TIMEOUT_S
        while time.monotonic() < end and (found.beyond(like) if like else same < IDLE_POLLS):
            await asyncio.sleep(IDLE_POLL_INTERVAL_S)
            found, before = self._now(), found
            same = same + 1 if found == before else 0
        return found

    def _now(self) -> Counts:
        gc.collect()
        return Counts.now(self._temporary)


async def start_all_threads() -> None:
    """Fill the event loop's default thread pool, which otherwise grows on demand."""
    count = min(32, (os.cpu_count() or 1) + 4)
    barrier = threading.Barrier(count)
    await asyncio.gather(*(asyncio.to_thread(barrier.wait, IDLE_TIMEOUT_S) for _ in range(count)))


async def soak(options: argparse.Namespace, folder: Path, store: str) -> dict[str, Any]:
    """Run the soak test."""
    (folder / "tmp").mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    before, began = Counts.now(folder / "tmp"), time.perf_counter()
    with model_server() as models:
        async with application(folder, models, store) as made:
            await made.run_until(options.warm_up)
            await start_all_threads()
            warm, (warm_mb, spare) = await made.wait_idle(), held_mb()
            traced = tracemalloc.take_snapshot() if options.trace else None
            samples, spares = [round(warm_mb, 1)], [round(spare, 1)]
            for _ in range(10):
                await made.run_until(made.turns + (options.turns - options.warm_up) // 10)
                held, spare = held_mb()
                samples.append(round(held, 1))
                spares.append(round(spare, 1))
                print(f"{made.turns} turns: {samples[-1]} MB, {dict(made.stops)}", flush=True)
            after, (after_mb, _) = await made.wait_idle(warm), held_mb()
            opened = open_files()
            if traced is not None:
                print_growth(traced)
    left = Counts.now(folder / "tmp")
    if after.beyond(warm) or not is_clean(before, left):
        print(f"open at rest: {opened}; in the end: {open_files()}", flush=True)
    growth = after_mb / warm_mb - 1
    return {
        "store": options.store,
        "turns": made.turns,
        "seconds": round(time.perf_counter() - began),
        "stops": dict(made.stops),
        "rss_after_warm_up_mb": round(warm_mb, 1),
        "rss_end_mb": round(after_mb, 1),
        "growth": round(growth, 4),
        "samples_mb": samples,
        "with_spare_mb": {"after_warm_up": spares[0], "most": max(spares)},
        **{name: [warm[name], after[name], left[name] - before[name]] for name in warm},
        "left_behind": ", ".join(after.beyond(warm)),
        "ok": growth < ALLOWED and not after.beyond(warm) and is_clean(before, left),
    }


def is_clean(before: Counts, left: Counts) -> bool:
    """Whether nothing is left after shutdown, except the threads of the event loop's pool."""
    return not set(left.beyond(before)) - {"threads"}


def print_growth(before: tracemalloc.Snapshot) -> None:
    """Print where the memory was allocated that is still held."""
    hidden = tracemalloc.Filter(inclusive=False, filename_pattern=tracemalloc.__file__)
    now = tracemalloc.take_snapshot().filter_traces([hidden])
    for one in now.compare_to(before.filter_traces([hidden]), "lineno")[:40]:
        print(one, flush=True)


def main() -> None:
    """Parse the command line and run the soak test."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=10_000, help="Total number of turns [10000]")
    parser.add_argument("--warm-up", type=int, default=2_000, help="Turns of the warm-up [2000]")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument(
        "--trace", action="store_true", help="Print where memory was allocated; slow"
    )
    options = parser.parse_args()
    server = Postgres() if options.store == "postgres" else None
    try:
        if server is not None:
            server.start()
        if options.trace:
            tracemalloc.start()
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            url = "" if server is None else server.url
            results = asyncio.run(soak(options, Path(folder), url))
    finally:
        if server is not None:
            server.close()
    print(json.dumps(results), flush=True)
    sys.exit(int(not results["ok"]))


if __name__ == "__main__":
    main()
