"""The settings of ours whose effect on the tasks is measured."""

from __future__ import annotations

from collections.abc import Sequence

from bench.tasks.drive import Variant
from bench.tasks.task import Task

VARIANT_PART = "variant: "
"""Before the name of a variant, in the results."""
VARIANTS = (
    Variant("double confirmation", options=("--confirm",)),
    Variant("all tools offered", many_tools=True),
    Variant("without skills", skills=False),
)


def tasks_for(variant: Variant, tasks: Sequence[Task]) -> list[Task]:
    """The tasks on which a variant can have an effect."""
    if not variant.skills:
        return [task for task in tasks if task.skills]
    if variant.many_tools:
        return [task for task in tasks if not (task.on or task.person or task.skills)]
    return [task for task in tasks if not task.on]
