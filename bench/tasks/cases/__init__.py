"""All tasks, in the order in which they are run."""

from __future__ import annotations

from bench.tasks.cases import commands, edits, files, fleet, outside, people, search

TASKS = (
    *files.TASKS,
    *search.TASKS,
    *edits.TASKS,
    *commands.TASKS,
    *outside.TASKS,
    *people.TASKS,
    *fleet.TASKS,
)
