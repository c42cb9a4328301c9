"""The settings of ours whose effect on the tasks is measured."""

from __future__ import annotations

from collections.abc import Sequence

from bench.tasks.drive import Variant
from bench.tasks.task import Task

VARIANT_PART = "variant: "
"""Before the name of a variant, in the results."""
DEFAULT_TOOLS = Variant("default tools", tools=())
MANY_TOOLS = (
    "read", "write", "edit", "glob", "grep", "apply_patch", "bash", "git_status", "git_diff",
    "git_log", "git_commit", "git_branch", "webfetch",
)  # fmt: skip
VARIANTS = (
    Variant("double confirmation", options=("--confirm",)),
    DEFAULT_TOOLS,
    Variant("many tools", tools=MANY_TOOLS),
    Variant("without skills", skills=False),
)


def tasks_for(variant: Variant, tasks: Sequence[Task]) -> list[Task]:
    """The tasks on which a variant can have an effect."""
    if not variant.skills:
        return [task for task in tasks if task.skills]
    if variant.tools is not None:
        return [task for task in tasks if task.for_peers]
    return [task for task in tasks if not task.on]
