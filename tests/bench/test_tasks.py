"""The judges of the task benchmark: the right solution passes, a claim without one does not.

Every task is run by the real command, with a scripted model on a real server.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL

import pytest
from bench.tasks.cases import TASKS
from bench.tasks.drive import Driver, Variant, fleet, output
from bench.tasks.task import Task, claims_success, reports_problem
from bench.tasks.taskbench import row_of
from bench.tasks.variants import VARIANTS

from tests.support.model_server import ModelServer, model_server

HERE = [task for task in TASKS if not task.on]
ON_EDGES = [task for task in TASKS if task.on]


def taught(driver: Driver, models: ModelServer, *, right: bool) -> Driver:
    """The driver with a model that solves its tasks, or that only claims to."""

    def announce(task: Task, prompts: Sequence[str], site: str) -> None:
        scripts = task.right if right else [task.wrong] * len(prompts)
        for prompt, script in zip(prompts, scripts, strict=True):
            models.scripts[prompt] = script.replace("{site}", site)

    return replace(driver, announce=announce)


async def check(task: Task, driver: Driver, models: ModelServer) -> None:
    """Run the right and the wrong solution of a task; one without calls need not be run."""
    if task.wrong.startswith("say "):
        why = task.judge(driver.claim(task, task.wrong.removeprefix("say ")))
    else:
        wrong = await taught(driver, models, right=False).run(task)
        assert wrong.stop == "completed", wrong.problem
        why = task.judge(wrong.ending)
    assert why, f"{task.name}: the judge accepts a claim"
    right = await taught(driver, models, right=True).run(task)
    solved = row_of(task, right)
    assert solved["solved"], f"{task.name}: {solved['why']}; calls: {right.ending.calls}"
    assert (solved["stop"], solved["wrong_done"]) == ("completed", False)


@pytest.mark.parametrize("task", HERE, ids=lambda task: task.name)
async def test_the_judge_accepts_the_right_solution_and_rejects_a_claim(
    tmp_path: Path, task: Task
) -> None:
    async with model_server() as models:
        await check(task, Driver(tmp_path, models.env, warm=True), models)


async def test_the_judges_of_tasks_on_edges_accept_only_the_right_machine(tmp_path: Path) -> None:
    async with model_server() as models, fleet(tmp_path, models.env) as place:
        driver = Driver(tmp_path, models.env, warm=True, place=place)
        for task in ON_EDGES:
            await check(task, driver, models)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
async def test_a_variant_changes_what_the_model_is_given(tmp_path: Path, variant: Variant) -> None:
    name = "skills/fact" if not variant.skills else "files/sum"
    task = next(task for task in HERE if task.name == name)
    async with model_server() as models:
        driver = taught(Driver(tmp_path, models.env, warm=True), models, right=True)
        run = await driver.run(task, variant)
    last = models.asked[-1].body
    assert (len(last["tools"]) > len(task.tools)) is (variant.tools is not None)
    assert ("Before I accept your answer" in str(last["messages"])) is (
        "--confirm" in variant.options
    )
    assert bool(task.judge(run.ending)) is not variant.skills


async def test_a_command_that_nobody_waits_for_is_killed() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "1000", stdout=PIPE)
    waiting = asyncio.create_task(output(process, 1000))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert process.returncode == -SIGKILL
    late = await asyncio.create_subprocess_exec("sleep", "1000", stdout=PIPE)
    assert await output(late, 0.01) == (b"", b"the command did not end in time")
    assert late.returncode == -SIGKILL


def test_tasks_have_unique_names_and_messages() -> None:
    assert len({task.name for task in TASKS}) == len(TASKS)
    messages = [prompt for task in TASKS for prompt in task.prompts]
    assert len(set(messages)) == len(messages), "scripts are found by their message"
    assert all(len(task.right) == len(task.prompts) for task in TASKS)


def test_a_digest_changes_with_what_the_model_sees_only() -> None:
    task = TASKS[0]
    assert task.digest() == replace(task, wrong="say Other.").digest()
    assert task.digest() != replace(task, prompts=("Another question?",)).digest()
    assert task.digest() != replace(task, turns=task.turns + 1).digest()


@pytest.mark.parametrize(
    ("stop", "answer", "claims"),
    [
        ("completed", "The file was written.", True),
        ("completed", "I could not write the file.", False),
        ("completed", "That was denied.", False),
        ("completed", "", False),
        ("completed", '```json\n{"name": "write"}\n```', False),
        ("max_iterations", "The file was written.", False),
    ],
)
def test_a_wrong_done_claim_is_a_completed_run_whose_answer_admits_nothing(
    stop: str, answer: str, claims: bool
) -> None:
    assert claims_success(stop, answer) is claims


@pytest.mark.parametrize(
    "answer",
    [
        "I can't do that.",
        "I don’t have access.",
        "There is no such file.",
        "The path is outside the workspace.",
    ],
)
def test_admissions_are_recognised(answer: str) -> None:
    assert reports_problem(answer)
