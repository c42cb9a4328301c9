"""The effects of a call, as people are shown them."""

from __future__ import annotations

from evoclaw.core.messages import JSON
from evoclaw.governance.rules.patterns import parts
from evoclaw.shell.effects import Effects


def shown_effects(effects: Effects) -> dict[str, JSON]:
    """What a call would do, by kind; only what is sure."""

    def paths(access: str) -> list[JSON]:
        found = (one.pattern for one in effects.places if one.sure and one.access == access)
        names = (None if not one else parts(one) for one in found)
        shown = ("any path" if one is None else "/" + "/".join(one) for one in names)
        return [*dict.fromkeys(one.replace("\\", "") for one in shown)]

    return {
        "programs": [one.shown for one in effects.programs],
        "reads": paths("read"),
        "writes": paths("write"),
        "hosts": [*dict.fromkeys(one.name or "any host" for one in effects.hosts if one.sure)],
        "sets": [one.name for one in effects.settings],
        "code": [*effects.code],
        "unreadable": effects.unreadable,
    }
