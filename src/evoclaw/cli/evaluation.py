"""`evoclaw eval`: run the cases of an agent, and print how many pass."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

import click
import msgspec

from evoclaw.cli import exits
from evoclaw.cli.approvals import identify_answerer
from evoclaw.cli.options import POSITIVE, CliCommand, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import clean, one_line, print_table
from evoclaw.core.errors import AgentNotFound, ConfigError

if TYPE_CHECKING:
    from evoclaw.evolution.cases import CaseFile, Split
    from evoclaw.evolution.evaluation import Attempt, Evaluation, Rate

MAX_REPEAT = 1_000
MAX_PROBLEM_CHARS = 240
"""Of a problem in the table: it may end with what to do."""
NO_CALL_TEXT = "no call to answer"
"""Instead of a coverage, if runs that have a record made no call."""


@click.command("eval", cls=CliCommand)
@click.argument("agent", help="The name of the agent")
@click.option(
    "--genome", type=int, metavar="N", show_default="the current one", help="Use version N"
)
@click.option("--cases", "names", multiple=True, metavar="NAME", help="Run this case; repeatable")
@click.option(
    "--split",
    "splits",
    multiple=True,
    type=click.Choice(["train", "validation", "sealed"]),
    show_default="train and validation",
    help="Run cases of this split; repeatable",
)
@click.option(
    "--release", default="", metavar="NAME", help="Name the release that the sealed cases open for"
)
@click.option(
    "--repeat", type=click.IntRange(1, MAX_REPEAT), default=1, metavar="N", help="Run each N times"
)
@click.option("--parallel", type=POSITIVE, default=4, metavar="N", help="Run N at the same time")
@json_option()
def eval_command(
    agent: str,
    genome: int | None,
    names: tuple[str, ...],
    splits: tuple[str, ...],
    release: str,
    repeat: int,
    parallel: int,
    *,
    as_json: bool,
) -> int:
    """Run the cases of an agent in sandboxes, and print how many pass."""
    if "sealed" in splits and not release:
        raise ConfigError("sealed cases are opened once for each release: name it with --release")
    done = asyncio.run(
        _evaluate(agent, genome, names, splits, release, repeat=repeat, parallel=parallel)
    )
    if as_json:
        print_out(msgspec.to_builtins(done))
    else:
        _print(done)
    return exits.OK if done.total.passed == done.total.attempts else exits.FAILED


async def _evaluate(
    agent: str,
    version: int | None,
    names: tuple[str, ...],
    splits: tuple[str, ...],
    release: str,
    *,
    repeat: int,
    parallel: int,
) -> Evaluation:
    from evoclaw.evolution.cases import Split, has_sealed
    from evoclaw.evolution.evaluation import evaluate, lineage_scores
    from evoclaw.wiring.agents import defined_agents
    from evoclaw.wiring.evaluation import open_audited_lineage, open_case_runner

    if agent not in (known := tuple(defined_agents(os.environ))):
        raise AgentNotFound(agent, known)
    wanted = [Split(split) for split in splits] or [Split.TRAIN, Split.VALIDATION]
    chosen = _cases(agent, names, wanted)
    opens_sealed = has_sealed(chosen)
    async with open_audited_lineage(os.environ) as (lineage, audit):
        genome = await lineage.version(agent, version)
        async with open_case_runner(agent, genome, os.environ) as runner:
            if opens_sealed:
                if why := identify_answerer().refusal_reason("local"):
                    raise ConfigError(why)
                opened = await lineage.open_sealed(agent, genome, release, by=current_user())
                await audit.record(opened)
            done = await evaluate(
                chosen,
                runner.open_run,
                repeat=repeat,
                parallel=parallel,
                on_attempt=_progress(len(chosen) * repeat),
            )
        scores = lineage_scores(done, release if opens_sealed else "")
        added = await lineage.add_evaluation(agent, genome, scores, by=current_user())
        await audit.record(added)
    return done


def _progress(total: int) -> Callable[[Attempt], None]:
    """Print each run as it ends, if a person watches."""
    numbers = count(1)

    def show(attempt: Attempt) -> None:
        if sys.stderr.isatty():
            verdict = "passed" if attempt.passed else "failed"
            print_err(f"{next(numbers)}/{total} {clean(attempt.case)}: {verdict}")

    return show


def _cases(agent: str, names: tuple[str, ...], splits: Sequence[Split]) -> list[CaseFile]:
    from evoclaw.evolution.cases import chosen_cases
    from evoclaw.wiring.evaluation import case_folder

    found, problems = case_folder(os.environ).read()
    for problem in problems:
        print_err(f"ignored: {clean(problem)}")
    return chosen_cases(found, agent, names, splits)


def current_user() -> str:
    """The name of the user of this process, for the lineage."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _print(done: Evaluation) -> None:
    rows = [
        (
            name,
            f"{rate.passed}/{rate.attempts}",
            _interval(rate),
            _coverage(done, name),
            one_line(_first_problem(done, name), MAX_PROBLEM_CHARS),
        )
        for name, rate in done.cases.items()
    ]
    print_table(rows, "no cases")
    total = done.total
    cost = "price unknown" if done.cost is None else f"${done.cost:.4f}"
    covered = f", {NO_CALL_TEXT}" if done.recorded else ""
    if done.coverage is not None:
        covered = f", coverage {done.coverage:.0%}"
    print_out(f"{total.passed} of {total.attempts} passed, {_interval(total)}, {cost}{covered}")


def _coverage(done: Evaluation, case: str) -> str:
    """The smallest share of calls that a run of a case had answered from the record."""
    attempts = [a for a in done.attempts if a.case == case and a.recorded]
    found = [a.coverage for a in attempts if a.coverage is not None]
    if found:
        return f"{min(found):.0%} of calls recorded"
    return NO_CALL_TEXT if attempts else ""


def _interval(rate: Rate) -> str:
    return f"{rate.rate:.0%} [{rate.low:.0%}, {rate.high:.0%}]"


def _first_problem(done: Evaluation, case: str) -> str:
    problems = (
        problem for attempt in done.attempts if attempt.case == case for problem in attempt.problems
    )
    return next(problems, "")
