"""Chooses the model of a run, opens its provider, and limits its tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from evoclaw.core.errors import ConfigError
from evoclaw.core.ports import Provider

SMALL_MODEL_TOOLS = ("read",)
"""The default tools of the small embedded model: more than one confuses it."""


async def choose_model(asked: str | None, env: Mapping[str, str]) -> str:
    """The model that the caller asked for, or the first one found on this machine."""
    from evoclaw.providers import find_default_model, model_setup_help

    name = asked or env.get("EVOCLAW_MODEL") or await find_default_model(env)
    if not name:
        raise ConfigError(model_setup_help())
    return name


async def find_model(env: Mapping[str, str]) -> tuple[str, str]:
    """The model that a run would use and an empty text; or no model and how to get one."""
    try:
        return await choose_model(None, env), ""
    except ConfigError as problem:
        return "", str(problem)


@asynccontextmanager
async def open_provider(name: str, env: Mapping[str, str]) -> AsyncGenerator[Provider]:
    """The provider of a model; `A,B` falls back to B."""
    from evoclaw.providers import provider_for
    from evoclaw.providers.closable import close
    from evoclaw.providers.fallback import Fallback
    from evoclaw.providers.http import Http

    async with Http() as http:
        providers = [provider_for(part.strip(), http=http, env=env) for part in name.split(",")]
        provider = providers[0] if len(providers) == 1 else Fallback(providers)
        try:
            yield provider
        finally:
            await close(provider)


def tools_for_model(name: str, tools: Sequence[str] | None) -> Sequence[str] | None:
    """The tools that the caller asked for, or those a small model can handle; None is all."""
    small = name.partition("/")[0] == "local"
    return SMALL_MODEL_TOOLS if tools is None and small else tools


def vision_dependency(provider: Provider) -> dict[type, object]:
    """The `Vision` dependency: the model of the run itself, if it reads images."""
    from evoclaw.tools.image import RunModelVision, Vision
    from evoclaw.tools.image_preparation import why_unavailable

    able = provider.profile.images and not why_unavailable()
    return {Vision: RunModelVision(model_sees_images=True)} if able else {}
