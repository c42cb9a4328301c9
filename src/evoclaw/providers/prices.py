"""What a reply cost, from a maintained table, overridable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from evoclaw.core.messages import Usage

Price: TypeAlias = Callable[[str, Usage], float | None]
"""Model name as served, usage -> US dollars, or None when the model has no known price."""
