"""Is it any good? Tasks for the whole product, with any models, beside other frameworks.

Each row is stored at once, so that an interrupted run continues. Writes `docs/task-figures.md`, and
ends with one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from bench.suite.subjects import CannotMeasure
from bench.tasks.bfcl import COUNT, measure_bfcl
from bench.tasks.cases import TASKS
from bench.tasks.drive import Driver, TaskRun, Variant, fleet
from bench.tasks.models import MeasuredModel, open_model
from bench.tasks.peer_tasks import FRAMEWORKS, measure_peer
from bench.tasks.report import PAGE, page
from bench.tasks.results import RESULTS, Results, Row, summary
from bench.tasks.task import Task, claims_success
from bench.tasks.variants import VARIANT_PART, VARIANTS, tasks_for

DEFAULT_MODEL = "embedded/smollm2-135m"
FOLDER_PREFIX = "taskbench-"
MAX_ANSWER_CHARS = 300
"""Of an answer that is stored, to see why a task was not solved."""


def row_of(task: Task, run: TaskRun) -> Row:
    """What is stored of a run."""
    why = run.problem or task.judge(run.ending)
    return {
        "digest": task.digest(),
        "solved": not why,
        "why": without_folder(why),
        "wrong_done": bool(why) and claims_success(run.stop, run.ending.answer),
        "stop": run.stop,
        "turns": run.turns,
        "calls": run.calls,
        "errors": run.errors,
        "recovered": run.recovered,
        "from_text": run.from_text,
        "tokens": run.usage.input + run.usage.output,
        "cached": run.usage.cache_read,
        "seconds": run.seconds,
        "answer": without_folder(run.ending.answer)[:MAX_ANSWER_CHARS],
    }


def without_folder(text: str) -> str:
    """A text with paths that are relative to the workspace of the task."""
    folder = rf"{re.escape(tempfile.gettempdir())}/{FOLDER_PREFIX}[^\s/]*"
    return re.sub(rf"{folder}(?:/work/?)?", "", text)


class ProgressLines:
    """One line for each row, with the time that is left."""

    def __init__(self, what: str, count: int) -> None:
        self._what, self._count, self._done = what, count, 0
        self._started = time.monotonic()

    def tell(self, name: str, row: Row) -> None:
        """Report a row that was measured."""
        self._done += 1
        good = row.get("solved", row.get("right"))
        verdict = "ok" if good else f"no ({row['why'] or 'not judged'})"
        left = (time.monotonic() - self._started) / self._done * max(0, self._count - self._done)
        print(
            f"{self._what} {self._done}/{self._count} {name}: {verdict[:100]}, "
            f"{row['seconds']:.0f} s; about {left / 60:.0f} min left",
            file=sys.stderr,
            flush=True,
        )


async def measure_tasks(
    model: MeasuredModel,
    tasks: Sequence[Task],
    results: Results,
    *,
    variant: Variant = Variant(),  # noqa: B008
    patience: float = 1.0,
) -> None:
    """Run every task that is not stored yet, within its seconds times the patience."""
    rows = results.model(model.name, VARIANT_PART + variant.name if variant.name else "tasks")
    missing = [task for task in tasks if not results.is_known(rows, task.name, task.digest())]
    lines = ProgressLines(f"{model.name} {variant.name}".strip(), len(missing))
    for on_edges in (False, True):
        # With the same tools one after the other, a server can reuse more of its cached prompt.
        group = sorted(
            (task for task in missing if bool(task.on) is on_edges), key=lambda task: task.tools
        )
        if not group:
            continue
        async with open_driver(model, with_fleet=on_edges) as driver:
            for task in group:
                limited = replace(task, seconds=round(task.seconds * patience))
                row = row_of(task, await driver.run(limited, variant))
                results.store(rows, task.name, row)
                lines.tell(task.name, row)


@asynccontextmanager
async def open_driver(model: MeasuredModel, *, with_fleet: bool) -> AsyncGenerator[Driver]:
    """A driver in a folder of its own; its fleet is started once."""
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as folder:
        driver = Driver(Path(folder), model.for_commands)
        if not with_fleet:
            yield driver
            return
        async with fleet(Path(folder), model.for_commands) as place:
            yield replace(driver, place=place)


def measure_peers(model: MeasuredModel, tasks: Sequence[Task], results: Results) -> None:
    """The frameworks that can be installed, on a server that they can use."""
    if not model.base_url:
        print(f"{model.name}: the peers need a GGUF file", file=sys.stderr)
        return
    for framework in FRAMEWORKS:
        rows = results.peer(framework.name, model.name)["tasks"]
        missing = [
            task
            for task in tasks
            if task.for_peers and not results.is_known(rows, task.name, task.digest())
        ]
        lines = ProgressLines(f"{framework.name} {model.name}", len(missing))
        with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as folder:
            try:
                measure_peer(framework, model, missing, Path(folder), results, lines.tell)
            except CannotMeasure as problem:
                print(f"{framework.name} is not measured: {problem}", file=sys.stderr)


async def measure(options: argparse.Namespace, results: Results) -> None:
    """Everything that the options ask for."""
    tasks = chosen(options.only, options.limit)
    patience: float = options.patience
    results.forget_other_tasks({task.name for task in TASKS})
    for spec in options.models:
        async with open_model(spec, options.threads) as model:
            await measure_tasks(model, tasks, results, patience=patience)
            if options.bfcl:
                lines = ProgressLines(f"{model.name} bfcl", options.bfcl)
                try:
                    await measure_bfcl(model, results, options.bfcl, lines.tell)
                except CannotMeasure as problem:
                    print(f"BFCL is not measured: {problem}", file=sys.stderr)
            if options.peers:
                await asyncio.to_thread(measure_peers, model, tasks, results)
            if options.variants:
                for variant in VARIANTS:
                    few = tasks_for(variant, tasks)
                    await measure_tasks(model, few, results, variant=variant, patience=patience)


def chosen(only: Sequence[str], limit: int | None) -> list[Task]:
    """The tasks whose name contains one of these texts; `SystemExit` if there is none."""
    found = [task for task in TASKS if not only or any(text in task.name for text in only)]
    if not found:
        groups = ", ".join(dict.fromkeys(f"{task.group}/" for task in TASKS))
        raise SystemExit(f"no task matches {' '.join(only)!r}; the groups are: {groups}")
    return found[:limit]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--models",
        "--model",
        nargs="+",
        default=[DEFAULT_MODEL],
        metavar="MODEL",
        help=f"GGUF files, or PROVIDER/MODEL [{DEFAULT_MODEL}]",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="Only tasks whose name contains this"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="Only the first N of these tasks")
    parser.add_argument("--bfcl", type=int, default=COUNT, help=f"BFCL entries; 0: none [{COUNT}]")
    parser.add_argument("--peers", action="store_true", help="Also measure other frameworks")
    parser.add_argument("--variants", action="store_true", help="Also measure our own settings")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="Multiply the seconds of each task, on a busy machine [1]",
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="Threads of the server of a GGUF file [all cores]"
    )
    parser.add_argument("--again", action="store_true", help="Measure stored rows once more")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="Store here; other files make no page"
    )
    return parser


def main() -> None:
    """Measure, write the page, and print the result."""
    options = parser().parse_args()
    results = Results(options.results, again=options.again)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, like Ctrl-C
    try:
        asyncio.run(measure(options, results))
    except KeyboardInterrupt:
        print("interrupted: the same command continues here", file=sys.stderr)
    if options.results == RESULTS:
        PAGE.write_text(page(Results().found))  # as stored: in memory, new rows come last
    print(json.dumps(summary(results.found)), flush=True)


if __name__ == "__main__":
    main()
