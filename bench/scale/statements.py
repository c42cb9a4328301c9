"""Counts what a run costs a database: statements on PostgreSQL, writes and syncs on SQLite.

PostgreSQL counts with `pg_stat_statements`; what it misses, the proxy counts. For SQLite, `strace`
follows the orchestrator and sees each write and each sync with its file; without it only the bytes
that /proc knows are reported.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
from bench.scale.deployment import Deployment
from bench.scale.speed_row import Load, StoreCounts, per_run, run_client, start_client

STATEMENTS = """
SELECT query, calls, total_exec_time, rows, wal_bytes, toplevel
FROM pg_stat_statements WHERE calls > 0 ORDER BY calls DESC, query
"""
FUNCTIONS = "SELECT funcname, calls, self_time FROM pg_stat_user_functions ORDER BY self_time DESC"
TRANSACTION_WORDS = frozenset({"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE"})
"""Statements that the proxy counts: PostgreSQL counts only the first use of a prepared one."""
WRITE_VERBS = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM)\s+(?:ONLY\s+)?([\w.\"]+)", re.I)
EXTRACT = re.compile(r"\bextract\s*\([^()]*FROM", re.I)
READ_SOURCE = re.compile(r"\bFROM\s+(?:ONLY\s+)?([\w.\"]+)", re.I)
CALLED = re.compile(r"SELECT\s+([\w.\"]+)\(", re.I)
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.S)
MAX_PRINTED_STATEMENTS = 60
STATISTICS_DELAY_S = 1.2
"""Seconds until an idle PostgreSQL process has reported the calls of its functions."""
SYSTEM_CALL = re.compile(
    r"(?P<call>write|pwrite64|writev|pwritev|fsync|fdatasync|sync_file_range)"
    r"\(\d+<(?P<file>/[^>]*)>.*?(?:\s=\s(?P<result>-?\d+)| <unfinished \.\.\.>)"
)
RESUMED = re.compile(r"<\.\.\. (?P<call>\w+) resumed>.*\s=\s(?P<result>-?\d+)")
SYNCS = frozenset({"fsync", "fdatasync", "sync_file_range"})


def kind_of(query: str) -> str:
    """The verb and the table of a statement; several writes of one statement are joined by `+`."""
    text = EXTRACT.sub(" ", " ".join(COMMENT.sub(" ", query).split()))
    verb = text.partition(" ")[0].rstrip(";").upper()
    if verb in TRANSACTION_WORDS:
        return verb
    if "advisory" in text and "lock" in text:
        return "SELECT advisory lock"
    writes = [
        f"{match[1].split()[0].upper()} {_bare(match[2])}"
        for match in WRITE_VERBS.finditer(text)
        if match[2].upper() not in ("SET", "SKIP", "NOWAIT", "OF")
    ]
    if writes:
        return " + ".join(dict.fromkeys(writes))
    source = READ_SOURCE.search(text)
    if source is None and (function := CALLED.match(text)):
        return f"{verb} {_bare(function[1])}()"
    return f"{verb} {_bare(source[1])}" if source else " ".join(text.split()[:2])[:40]


def _bare(table: str) -> str:
    return table.replace('"', "").rpartition(".")[2].lower()


async def postgres_statements(deployment: Deployment, admin: str, load: Load) -> dict[str, Any]:
    """Run a load, and print and return the statements of each run, by kind."""
    client = await start_client(deployment, admin, load)
    before = await StoreCounts.before_load(deployment)
    with psycopg.connect(deployment.postgres.url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        connection.execute("SELECT pg_stat_statements_reset(), pg_stat_reset()")
        found = await run_client(client)
        rows = connection.execute(STATEMENTS).fetchall()
        await asyncio.sleep(STATISTICS_DELAY_S)
        functions = connection.execute(FUNCTIONS).fetchall()
    after = await StoreCounts.after_load(deployment)
    assert before is not None
    assert after is not None
    runs = found["runs"]
    every = [row for row in rows if "pg_stat_statements" not in row[0]]
    rows = [row[:5] for row in every if row[5]]
    calls, spent_ms = Counter[str](), Counter[str]()
    for query, count, total_ms, _, _ in rows:
        calls[kind_of(query)] += count
        spent_ms[kind_of(query)] += total_ms
    counts = after.since(before, deployment)
    for word in TRANSACTION_WORDS & {*calls, *counts["executed"]}:
        calls[word] = counts["executed"].get(word, 0)
    figures = {
        "at_once": load.at_once,
        "runs": runs,
        "latency_s": round(sorted(found["latencies_s"])[runs // 2], 4),
        "statements_per_run": round(sum(calls.values()) / runs, 1),
        **per_run(counts, runs),
        "kinds": {
            kind: {
                "per_run": round(count / runs, 2),
                "ms": None if kind in TRANSACTION_WORDS else round(spent_ms[kind] / count, 3),
            }
            for kind, count in calls.most_common()
            if count
        },
    }
    _print_statements(figures, rows)
    _print_functions(runs, [row[:5] for row in every if not row[5]], functions)
    return figures


def _print_functions(runs: int, statements: list[Any], functions: list[Any]) -> None:
    """Print what the server functions do: their own time, and the statements inside them."""
    print("\n  per run  ms per run  function, without its statements")
    for name, calls, self_ms in functions:
        print(f"{calls / runs:>9.2f} {self_ms / runs:>11.3f}  {name}")
    print("\n  per run  ms per run  WAL bytes per run  statement inside a function")
    statements.sort(key=lambda row: -row[2])
    for query, calls, total_ms, _, wal_bytes in statements[:MAX_PRINTED_STATEMENTS]:
        text = " ".join(query.split())[:120]
        line = f"{calls / runs:>9.2f} {total_ms / runs:>11.3f} {float(wal_bytes) / runs:>18.0f}"
        print(f"{line}  {text}")
    sys.stdout.flush()


def _print_statements(figures: dict[str, Any], rows: list[Any]) -> None:
    runs = figures["runs"]
    print(f"\nPostgreSQL, {figures['at_once']} at once, {runs} runs; for each run:")
    for name in ("statements", "round_trips", "commits", "written_commits", "wal_kb"):
        print(f"{figures[f'{name}_per_run']:>9}  {name.replace('_', ' ')}")
    print("\n  per run   ms each  kind of statement")
    for kind, found in figures["kinds"].items():
        ms = "–" if found["ms"] is None else f"{found['ms']:.3f}"
        print(f"{found['per_run']:>9.2f} {ms:>9}  {kind}")
    print("\n  per run   ms each  rows each  statement")
    for query, calls, total_ms, count, _ in rows[:MAX_PRINTED_STATEMENTS]:
        text = " ".join(query.split())[:150]
        print(f"{calls / runs:>9.2f} {total_ms / calls:>9.3f} {count / calls:>10.1f}  {text}")
    sys.stdout.flush()


async def sqlite_writes(deployment: Deployment, admin: str, load: Load) -> dict[str, Any]:
    """Run a load, and print and return the syncs and the written bytes of each run, by file."""
    orchestrator = deployment.orchestrators[0]
    client = await start_client(deployment, admin, load)
    trace = deployment.folder / "trace"
    tracer = await _trace(orchestrator.pid, trace)
    before = _written_bytes(orchestrator.pid)
    found = await run_client(client)
    runs, disk_bytes = found["runs"], _written_bytes(orchestrator.pid) - before
    figures: dict[str, Any] = {"disk_kb_per_run": round(disk_bytes / runs / 1000, 1)}
    if tracer is not None:
        tracer.send_signal(signal.SIGINT)
        await asyncio.wait_for(tracer.wait(), 20)
        files = read_trace(trace.read_text(errors="replace"), orchestrator.home)
        trace.unlink()
        figures |= _by_file(files, runs)
    print(f"\nSQLite, {load.at_once} at once, {runs} runs; for each run: {figures}", flush=True)
    return figures


def _by_file(files: dict[str, Counter[str]], runs: int) -> dict[str, Any]:
    return {
        "syncs_per_run": round(sum(file["syncs"] for file in files.values()) / runs, 2),
        "written_kb_per_run": round(sum(f["bytes"] for f in files.values()) / runs / 1000, 1),
        "files": {
            name: {
                "syncs": round(file["syncs"] / runs, 2),
                "writes": round(file["writes"] / runs, 2),
                "kb": round(file["bytes"] / runs / 1000, 1),
            }
            for name, file in sorted(files.items())
        },
    }


async def _trace(pid: int, output: Path) -> asyncio.subprocess.Process | None:
    """Follow the writes and syncs of a process; None if `strace` is missing or not allowed."""
    program = shutil.which("strace")
    if program is None:
        print("strace is not installed: syncs are not counted", file=sys.stderr)
        return None
    calls = "trace=write,pwrite64,writev,pwritev,fsync,fdatasync,sync_file_range"
    argv = (program, "-f", "-y", "-s", "0", "-e", calls, "-o", str(output), "-p", str(pid))
    pipe = asyncio.subprocess.PIPE
    tracer = await asyncio.create_subprocess_exec(*argv, stderr=pipe)
    assert tracer.stderr is not None
    line = await asyncio.wait_for(tracer.stderr.readline(), 20)
    if b"attached" not in line:
        print(f"syncs are not counted: {line.decode().strip()}", file=sys.stderr)
        await tracer.wait()
        return None
    return tracer


def read_trace(text: str, folder: Path) -> dict[str, Counter[str]]:
    """The syncs, writes and bytes by file below a folder, from the output of `strace -f -y`."""
    files: dict[str, Counter[str]] = {}
    unfinished: dict[str, str] = {}
    for line in text.splitlines():
        thread, _, call = line.partition(" ")
        match = SYSTEM_CALL.search(call)
        if match is not None and match["result"] is None:
            unfinished[thread] = match["file"]
            continue
        file = match["file"] if match else ""
        if match is None:
            match = RESUMED.search(call)
            file = unfinished.pop(thread, "") if match else ""
        if match is None or not file.startswith(f"{folder}/"):
            continue
        counts = files.setdefault(file.removeprefix(f"{folder}/"), Counter())
        if match["call"] in SYNCS:
            counts["syncs"] += 1
        else:
            counts["writes"] += 1
            counts["bytes"] += max(0, int(match["result"]))
    return files


def _written_bytes(pid: int) -> int:
    """The bytes that a process sent to the disk so far."""
    match = re.search(r"^write_bytes: (\d+)", Path(f"/proc/{pid}/io").read_text(), re.M)
    assert match is not None
    return int(match[1])
