"""The public names with their types; `__init__.py` imports each when it is first used."""

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.chain import Chain
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ConfigError, EvoClawError, ProviderError, ToolFailure
from evoclaw.core.events import Event, Record, StopReason
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import ErrorKind, ImageBlock, Message, Reply, TextBlock, ToolResult
from evoclaw.core.ports import (
    Allow,
    Approval,
    Approver,
    Ask,
    Decision,
    Deny,
    Executor,
    Policy,
    Ports,
    Provider,
    Request,
    Sink,
)
from evoclaw.core.run import RunResult, run, watch
from evoclaw.core.state import RunState, fold, new_run
from evoclaw.core.tools import Call, Effect, Tool
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.governance.permissions import Permissions
from evoclaw.providers.registry import provider_for
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.tools.define import tool

__all__ = [
    "Agent",
    "Allow",
    "Approval",
    "Approver",
    "Ask",
    "Autonomy",
    "Call",
    "Chain",
    "ConfigError",
    "Deadline",
    "Decision",
    "Deny",
    "Effect",
    "ErrorKind",
    "Event",
    "EvoClawError",
    "Executor",
    "ImageBlock",
    "Level",
    "LocalExecutor",
    "LoopSettings",
    "Message",
    "Permissions",
    "Policy",
    "Ports",
    "Provider",
    "ProviderError",
    "Record",
    "Reply",
    "Request",
    "RunResult",
    "RunState",
    "Scripted",
    "Sink",
    "StopReason",
    "TextBlock",
    "Tool",
    "ToolFailure",
    "ToolResult",
    "calls",
    "fold",
    "new_run",
    "provider_for",
    "run",
    "run_loop",
    "says",
    "tool",
    "watch",
]
