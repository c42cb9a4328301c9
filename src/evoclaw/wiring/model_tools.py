"""Which tools a model is offered if none are named."""

from __future__ import annotations

from collections.abc import Collection

from evoclaw.core.pipeline import OfferStep


def model_steps(model: str, named: Collection[str] | None) -> list[OfferStep]:
    """What limits a small model to few tools: it chooses badly among many.

    Args:
        model: The name that its provider gives it.
        named: The tools that the caller or the agent's definition names: nothing else is left out.
            None if neither does.
    """
    from evoclaw.providers.models.local import default_tools
    from evoclaw.tools.sets import FewBuiltInTools

    few = default_tools(model) if named is None else ()
    return [FewBuiltInTools(few)] if few else []
