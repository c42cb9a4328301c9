"""`[embedded]`: how the models on this machine are served."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class EmbeddedSettings(Struct, frozen=True, kw_only=True):
    """How the server of the models on this machine runs."""

    threads: Annotated[int, Meta(ge=0, le=512)] = 0
    """The threads that compute; 0: one for each core that is free when the server starts."""
    slots: Annotated[int, Meta(ge=0, le=64)] = 0
    """The replies that are computed at the same time; further requests wait. Each slot has a
    context of its own. 0: two, or one if the memory is too little for two."""
    context_tokens: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """The context of each slot; 0: that of the model."""
    idle_s: Annotated[float, Meta(ge=0, le=604_800)] = 300.0
    """Seconds without a request after which the server stops and frees its memory; the next request
    starts it again. 0: it never stops."""


DEFAULT_EMBEDDED_SETTINGS = EmbeddedSettings()
