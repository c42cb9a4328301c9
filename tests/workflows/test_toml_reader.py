"""Definitions in TOML: the same as in Python, and every mistake has its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.workflows.definition import (
    AgentStep,
    ConditionStep,
    Input,
    ParallelStep,
    Retry,
    Schedule,
    ToolStep,
    Workflow,
)
from evoclaw.workflows.errors import InvalidWorkflow
from evoclaw.workflows.toml_reader import read_workflow
from evoclaw.workflows.validation import validate_workflow

WHOLE = """\
description = "What the disks say."
output = { text = "{{ steps.summary.output.text }}" }

[inputs.host]
type = "string"

[inputs.limit]
type = "integer"
default = 80

[schedule]
cron = "0 7 * * *"
timezone = "Europe/Berlin"
inputs = { host = "pi" }

[[steps]]
name = "both"
kind = "parallel"
limit = 2

[[steps.steps]]
name = "disk"
kind = "tool"
tool = "df"
arguments = { host = "{{ inputs.host }}" }
retry = { attempts = 3, backoff_s = 2 }
timeout_s = 30

[[steps.steps]]
name = "memory"
kind = "tool"
tool = "free"
on_error = "continue"

[[steps]]
name = "full"
kind = "condition"
if = "steps.disk.output.data.used > inputs.limit"

[[steps.then]]
name = "summary"
kind = "agent"
agent = "writer"
message = '''
Say how to make room:
{{ steps.disk.output.text }}
'''
iterative = false
"""


def test_a_toml_definition_equals_the_python_definition() -> None:
    assert read_workflow(WHOLE, "disks.toml", "disks") == Workflow(
        "disks",
        (
            ParallelStep(
                "both",
                (
                    ToolStep(
                        "disk",
                        tool="df",
                        arguments={"host": "{{ inputs.host }}"},
                        retry=Retry(attempts=3, backoff_s=2),
                        timeout_s=30,
                    ),
                    ToolStep("memory", tool="free", on_error="continue"),
                ),
                limit=2,
            ),
            ConditionStep(
                "full",
                when="steps.disk.output.data.used > inputs.limit",
                then=(
                    AgentStep(
                        "summary",
                        agent="writer",
                        message="Say how to make room:\n{{ steps.disk.output.text }}\n",
                        iterative=False,
                    ),
                ),
            ),
        ),
        description="What the disks say.",
        inputs={"host": Input(type="string"), "limit": Input(type="integer", default=80)},
        output={"text": "{{ steps.summary.output.text }}"},
        schedule=Schedule(cron="0 7 * * *", timezone="Europe/Berlin", inputs={"host": "pi"}),
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("{{ inputs.host }}", "{{ inputs.hots }}", 25, "did you mean 'host'"),
        ("steps.disk.output.text", "steps.disc.output.text", 46, "did you mean 'disk'"),
        ("steps.disk.output.data", "steps.summary.output.data", 38, "has not ended by then"),
        ("steps.disk.output.data", "steps.disk.data", 38, "write steps.disk.output"),
        ("data.used > inputs", "data.used >> inputs", 38, "expected a value"),
        ('tool = "df"', 'tol = "df"', 24, "did you mean 'tool'"),
        ('kind = "parallel"', 'kind = "paralel"', 18, "did you mean 'parallel'"),
        ("attempts = 3", "attemps = 3", 26, "did you mean 'attempts'"),
        ("attempts = 3", "attempts = 0", 26, "attempts: Expected `int` >= 1"),
        ("timeout_s = 30", 'timeout_s = "soon"', 27, "timeout_s: Expected"),
        ('name = "memory"', 'name = "disk"', 22, "two steps are named 'disk'"),
        ('on_error = "continue"', 'on_error = "contine"', 33, "did you mean 'continue'"),
        ('on_error = "continue"', 'on_error = "summary"', 33, "only name a later step"),
        ("default = 80", 'default = "80"', 9, "the default of 'limit' must be of type integer"),
        ('cron = "0 7 * * *"', 'cron = "0 25 * * *"', 12, "hour: '25'"),
        ("Europe/Berlin", "Europe/Berlim", 13, "unknown time zone"),
        ('inputs = { host = "pi" }', "", 11, "inputs are missing: host"),
        ('description = "What', 'descripton = "What', 1, "did you mean 'description'"),
        ('name = "summary"', 'name = "sum mary"', 41, "cannot be a name"),
        ("{{ steps.summary.output.text }}", "{{ steps.summary.output.text ", 2, "is not closed"),
        ('agent = "writer"\n', "", 40, "missing required field `agent`"),
    ],
)
def test_a_mistake_is_reported_with_its_file_and_line(
    old: str, new: str, line: int, problem: str
) -> None:
    assert old in WHOLE
    with pytest.raises(InvalidWorkflow) as refused:
        read_workflow(WHOLE.replace(old, new, 1), "disks.toml", "disks")

    assert str(refused.value).startswith(f"disks.toml, line {line}: ")
    assert problem in str(refused.value)


def test_invalid_toml_is_refused() -> None:
    with pytest.raises(ConfigError, match="disks.toml is not TOML"):
        read_workflow("name = [", "disks.toml")


def test_parallel_steps_cannot_reference_each_other() -> None:
    group = ParallelStep(
        "all",
        (ToolStep("a", tool="t"), ToolStep("b", tool="t", arguments={"x": "{{ steps.a.output }}"})),
    )
    with pytest.raises(InvalidWorkflow, match="'a' has not ended by then"):
        validate_workflow(Workflow("w", (group,)))


@pytest.mark.parametrize(
    "example", sorted((Path(__file__).parents[2] / "examples" / "workflows").glob("*.toml")),
    ids=lambda path: path.name,
)  # fmt: skip
def test_every_example_file_is_a_valid_workflow(example: Path) -> None:
    workflow = read_workflow(example.read_text(), example.name, example.stem)

    assert workflow.name == example.stem and workflow.description
