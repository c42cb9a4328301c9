"""What a caller is told about workflows.

EvoClawError
├── ConfigError
│   └── WorkflowRefused  a definition cannot work; the message says where and why
├── NoWorkflow           no workflow of that name is defined
├── NoWorkflowRun        there is none of that id
├── BadInputs            it cannot be started with these
├── KeyReused            the same key came with something else
├── NotAPerson           only people answer
└── CannotAnswer         nothing waits for that answer
"""

from __future__ import annotations

from collections.abc import Iterable

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.skills.names import unknown


class WorkflowRefused(ConfigError):
    """A definition cannot work."""


class NoWorkflow(EvoClawError):
    """No workflow of that name is defined."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(unknown("workflow", name, known))
        self.name = name


class NoWorkflowRun(EvoClawError):
    """There is none of that id."""

    def __init__(self, workflow_id: str) -> None:
        super().__init__(f"there is no workflow {workflow_id[:80]!r}")
        self.workflow_id = workflow_id


class BadInputs(EvoClawError):
    """A workflow cannot be started with these inputs."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"workflow {name!r}: {problem}")
        self.name, self.problem = name, problem


class KeyReused(EvoClawError):
    """The same key came with something else."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the key {key[:80]!r} was used for another workflow or other inputs; choose a new one"
        )
        self.key = key


class NotAPerson(EvoClawError):
    """Only people answer."""


class CannotAnswer(EvoClawError):
    """Nothing waits for that answer."""
