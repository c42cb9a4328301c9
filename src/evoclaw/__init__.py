"""EvoClaw orchestrates LLM agents and edge devices. These are the public names.

Each is imported when first used: an edge on a small device needs few of them. The types are in
`__init__.pyi`.
"""

from importlib import import_module

_NAMES = {
    "core.agent": "Agent LoopSettings",
    "core.deadline": "Deadline",
    "core.errors": "ConfigError EvoClawError ProviderError ToolFailure",
    "core.events": "Event Record StopReason",
    "core.loop": "run_loop",
    "core.messages": "ErrorKind ImageBlock Message Reply TextBlock ToolResult",
    "core.ports": "Allow Approval Approver Ask Decision Deny Executor Policy Ports Provider "
    "Request Sink",
    "core.run": "RunResult run watch",
    "core.state": "RunState fold new_run",
    "core.tools": "Call Effect Tool",
    "executors.local": "LocalExecutor",
    "governance.autonomy": "Autonomy Level",
    "core.chain": "Chain",
    "governance.permissions": "Permissions",
    "providers.registry": "provider_for",
    "providers.scripted": "Scripted calls says",
    "tools.define": "tool",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    _MODULE_OF, key=lambda name: (name[0].islower(), name)
)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'evoclaw' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"evoclaw.{_MODULE_OF[name]}"), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
