"""The errors that callers of workflows get.

EvoClawError
├── ConfigError
│   └── InvalidWorkflow    the definition is invalid; the message says where and why
├── UnknownWorkflow        no workflow of this name is defined
├── WorkflowRunNotFound    no workflow with this id was started
├── BadInputs              the workflow cannot start with these inputs
├── WorkflowKeyReused      the idempotency key was used with another request
├── NotAPerson             only a person may answer
└── CannotAnswer           the step does not wait for this answer
"""

from __future__ import annotations

from collections.abc import Iterable

from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.skills.names import unknown_name


class InvalidWorkflow(ConfigError):
    """The definition is invalid."""


class UnknownWorkflow(EvoClawError):
    """No workflow of this name is defined."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(unknown_name("workflow", name, known))
        self.name = name


class WorkflowRunNotFound(EvoClawError):
    """No workflow with this id was started."""

    def __init__(self, workflow_id: str) -> None:
        super().__init__(f"workflow run {workflow_id[:80]!r} does not exist")
        self.workflow_id = workflow_id


class BadInputs(EvoClawError):
    """The workflow cannot start with these inputs."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"workflow {name!r}: {problem}")
        self.name, self.problem = name, problem


class WorkflowKeyReused(EvoClawError):
    """The idempotency key was used with another request."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the idempotency key {key[:80]!r} was used for another workflow or other inputs; "
            "choose a new one"
        )
        self.key = key


class NotAPerson(EvoClawError):
    """Only a person may answer."""


class CannotAnswer(EvoClawError):
    """The step does not wait for this answer."""
