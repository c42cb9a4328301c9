"""The paths that stand in a command which could not be read: what it names, it may touch."""

from __future__ import annotations

import re
from itertools import islice

from evoclaw.shell.shapes import literal
from evoclaw.shell.state import Scene

MOST = 100
"""Words that are looked at."""
_BREAKS = re.compile(r"[\s;&|<>(){}\"'`=,]+")
_HOME = re.compile(r"\$HOME\b|\$\{HOME\}|(?<![\w/.~])~(?=/|\s|$)")


def salvage(scene: Scene, text: str) -> None:
    """Note every word with a slash in it as read and written; the rest stays in doubt."""
    told = _HOME.sub(lambda _: scene.home.replace("\\", "") or "~", text)
    found = (one.replace("\\", "") for one in _BREAKS.split(told))
    for word in islice((one for one in found if "/" in one and "\0" not in one), MOST):
        scene.both(literal(word), "")
