"""10,000 turns in one process: does anything stay behind? Ends with one JSON object.

The process is a whole `evoclaw up`: a broker, an orchestrator, its service, and an edge as a
process of its own, whose commands are processes, too. A model server stands beside it. Runs in many
sessions are begun over HTTP and watched; some watchers leave in the middle, some runs are
cancelled, some calls fail, and some take too long. After a warm-up, and at the end, everything is
let come to rest and counted: memory, tasks, open files, threads, processes, files that are
temporary. Memory may be larger by 5 %, all else must be what it was; and when the house is closed,
nothing is left. The exit code is 1 if not.
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
"""By how much memory may grow after the warm-up."""
PATIENCE = 60.0
LOOK, QUIET = 0.25, 80
"""Seconds between two looks at what goes on; after so many alike nothing does, and connections that
are kept for a while have been closed."""
WORKERS = 8
PER_SESSION = 10
"""Runs that are begun in a session before a new one is opened."""
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
"""One caller does what many would; and what is done once a minute is done in the warm-up, too."""
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
"""What is asked for, and how often beside the others."""


class Counts(dict[str, int]):
    """What there is of everything that could be left behind, but for memory."""

    @classmethod
    def now(cls, temporary: Path) -> Counts:
        """As it is."""
        return cls(
            tasks=len(asyncio.all_tasks()),
            fds=len(list(Path("/proc/self/fd").iterdir())) - 1,
            threads=threading.active_count(),
            processes=len(descendants(os.getpid())),
            files=sum(1 for path in temporary.rglob("*") if path.is_file()),
        )

    def beyond(self, before: Counts) -> list[str]:
        """What there is more of than before."""
        return [name for name, count in self.items() if count > before[name]]


def open_files() -> list[str]:
    """What this process holds open, by name."""
    found: list[str] = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(path.readlink()))
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """The processes below one."""
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
    """The memory that is in use, and with what the C library keeps for later.

    It keeps some that is free between what is not: how much differs from one minute to the next.
    """
    gc.collect()
    with_spare = resident_mb()
    with suppress(AttributeError):  # another C library keeps none
        ctypes.CDLL(None).malloc_trim(0)
    return resident_mb(), with_spare


@contextmanager
def model_server() -> Iterator[dict[str, str]]:
    """A model server in a process of its own; gives what makes EvoClaw use it."""
    argv = [sys.executable, "-m", "tests.support.model_server"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
            yield {"EVOCLAW_MODEL": f"vllm/{NAME}", "VLLM_BASE_URL": url}
        finally:
            process.kill()


@asynccontextmanager
async def house(folder: Path, models: dict[str, str], store: str) -> AsyncGenerator[Soak]:
    """Everything, in this process."""
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
        await up.orchestrator.wait_for("local", PATIENCE)
        said = json.loads((home / "api.json").read_text())
        yield Soak(said["url"], said["token"], folder / "tmp")


class Soak:
    """Who asks, and what came of it."""

    _http: aiohttp.ClientSession

    def __init__(self, url: str, token: str, temporary: Path) -> None:
        self._url, self._temporary = url, temporary
        self._headers = {"authorization": f"Bearer {token}"}
        self.turns = 0
        self.stops: Counter[str] = Counter()
        self._chance = random.Random(8)

    async def go_on(self, turns: int) -> None:
        """Have so many turns made in all, over connections that are closed then."""
        patience = aiohttp.ClientTimeout(PATIENCE)
        async with (
            aiohttp.ClientSession(timeout=patience) as self._http,
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
            await self._watch(path, until=b"\n")  # who leaves in the middle
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
        """Watch a run to its end, or until something was said."""
        url = f"{self._url}{path}/events"
        async with self._http.get(url, headers=self._headers) as answer:
            seen = b""
            async for chunk in answer.content.iter_any():
                seen += chunk if until else b""
                if until and until in seen:
                    return

    async def rest(self, like: Counts | None = None) -> Counts:
        """Wait until nothing goes on, or there is no more than there was; what there is then."""
        found, same, end = self._now(), 0, time.monotonic() + PATIENCE
        while time.monotonic() < end and (found.beyond(like) if like else same < QUIET):
            await asyncio.sleep(LOOK)
            found, before = self._now(), found
            same = same + 1 if found == before else 0
        return found

    def _now(self) -> Counts:
        gc.collect()
        return Counts.now(self._temporary)


async def begin_all_threads() -> None:
    """Those of the loop for what would block it are begun as they are needed, up to a number."""
    most = min(32, (os.cpu_count() or 1) + 4)
    together = threading.Barrier(most)
    await asyncio.gather(*(asyncio.to_thread(together.wait, PATIENCE) for _ in range(most)))


async def soak(options: argparse.Namespace, folder: Path, store: str) -> dict[str, Any]:
    """All of it."""
    (folder / "tmp").mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    before, began = Counts.now(folder / "tmp"), time.perf_counter()
    with model_server() as models:
        async with house(folder, models, store) as made:
            await made.go_on(options.warm_up)
            await begin_all_threads()
            warm, (warm_mb, spare) = await made.rest(), held_mb()
            traced = tracemalloc.take_snapshot() if options.trace else None
            samples, spares = [round(warm_mb, 1)], [round(spare, 1)]
            for _ in range(10):
                await made.go_on(made.turns + (options.turns - options.warm_up) // 10)
                held, spare = held_mb()
                samples.append(round(held, 1))
                spares.append(round(spare, 1))
                print(f"{made.turns} turns: {samples[-1]} MB, {dict(made.stops)}", flush=True)
            after, (after_mb, _) = await made.rest(warm), held_mb()
            opened = open_files()
            if traced is not None:
                tell_growth(traced)
    left = Counts.now(folder / "tmp")
    if after.beyond(warm) or not gone(before, left):
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
        "ok": growth < ALLOWED and not after.beyond(warm) and gone(before, left),
    }


def gone(before: Counts, left: Counts) -> bool:
    """Whether nothing is left of the house. A loop keeps the threads that it has begun."""
    return not set(left.beyond(before)) - {"threads"}


def tell_growth(before: tracemalloc.Snapshot) -> None:
    """Say where memory was asked for that is still held."""
    hidden = tracemalloc.Filter(inclusive=False, filename_pattern=tracemalloc.__file__)
    now = tracemalloc.take_snapshot().filter_traces([hidden])
    for one in now.compare_to(before.filter_traces([hidden]), "lineno")[:40]:
        print(one, flush=True)


def main() -> None:
    """Soak as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=10_000, help="in all (default: 10,000)")
    parser.add_argument("--warm-up", type=int, default=2_000, help="of them, before it counts")
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--trace", action="store_true", help="say where memory went; slow")
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
