"""Which model answers, and what it can cope with."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Provider

ONE_TOOL = ("read",)
"""What the embedded small model is offered unless told otherwise: more than one confuses it."""


async def choose_model(asked: str | None, env: Mapping[str, str]) -> str:
    """The model asked for, or whichever is at hand."""
    from evoclaw.providers import find_default, how_to_get_a_model

    name = asked or env.get("EVOCLAW_MODEL") or await find_default(env)
    if not name:
        raise ConfigError(how_to_get_a_model())
    return name


async def model_at_hand(env: Mapping[str, str]) -> tuple[str, str]:
    """The model that a run would get, or how to get one."""
    try:
        return await choose_model(None, env), ""
    except ConfigError as problem:
        return "", str(problem)


@asynccontextmanager
async def open_provider(name: str, env: Mapping[str, str]) -> AsyncGenerator[Provider]:
    """A model's provider; `A,B` falls back on B."""
    from evoclaw.providers import provider_for
    from evoclaw.providers.closing import close
    from evoclaw.providers.fallback import Fallback
    from evoclaw.providers.http import Http

    async with Http() as http:
        each = [provider_for(one.strip(), http=http, env=env) for one in name.split(",")]
        provider = each[0] if len(each) == 1 else Fallback(each)
        try:
            yield provider
        finally:
            await close(provider)


def for_model(name: str, tools: Sequence[str] | None) -> Sequence[str] | None:
    """The tools asked for, or what this model can cope with; None is all there are."""
    small = name.partition("/")[0] == "local"
    return ONE_TOOL if tools is None and small else tools


def eyes(provider: Provider) -> dict[type, object]:
    """Who looks at pictures: the model itself, if it can."""
    from evoclaw.tools.image import OwnEyes, Vision
    from evoclaw.tools.pictures import why_unavailable

    able = provider.profile.images and not why_unavailable()
    return {Vision: OwnEyes(sees=True)} if able else {}
