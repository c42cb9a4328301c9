"""The effects of a call, as shown to people."""

from __future__ import annotations

from evoclaw.core.messages import JSON
from evoclaw.governance.rules.patterns import path_parts
from evoclaw.shell.effects import Effects


def describe_effects(effects: Effects) -> dict[str, JSON]:
    """The effects of a call by kind; only those that are certain."""

    def paths(access: str) -> list[JSON]:
        found = (path.pattern for path in effects.places if path.sure and path.access == access)
        split = (None if not pattern else path_parts(pattern) for pattern in found)
        shown = ("any path" if names is None else "/" + "/".join(names) for names in split)
        return [*dict.fromkeys(path.replace("\\", "") for path in shown)]

    return {
        "programs": [program.shown for program in effects.programs],
        "reads": paths("read"),
        "writes": paths("write"),
        "hosts": [*dict.fromkeys(host.name or "any host" for host in effects.hosts if host.sure)],
        "sets": [setting.name for setting in effects.settings],
        "code": [*effects.code],
        "unreadable": effects.unreadable,
    }
