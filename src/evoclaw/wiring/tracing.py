"""The traces of this process, where the standard variables ask for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError
from evoclaw.observe.tracing.tracing import Tracing, captures_content, configured_exporters

if TYPE_CHECKING:
    from evoclaw.core.redaction import Redactor

logger = logging.getLogger(__name__)
LAST = 2.0
"""Seconds in which the last spans are sent when a process ends; what is not is lost."""


@asynccontextmanager
async def open_tracing(env: Mapping[str, str], name: str) -> AsyncGenerator[Tracing | None]:
    """Trace while the block runs; None if nobody asks.

    Args:
        env: What asks for it.
        name: What this process is called in traces, unless `OTEL_SERVICE_NAME` says it.
    """
    kinds = configured_exporters(env)
    if not kinds:
        yield None
        return
    try:
        from evoclaw.observe.tracing.spans import open_spans
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("opentelemetry"):
            raise
        text = "OTEL_… variables ask for traces, which need more packages: "
        raise ConfigError(
            f"{text}`pip install 'evoclaw[otel]'`, or set OTEL_SDK_DISABLED=true"
        ) from None
    from evoclaw.observe.tracing.logs import trace_ids_in_logs

    tracing = Tracing(open_spans(kinds, name), content=_redactor(env))
    try:
        with trace_ids_in_logs():
            yield tracing
    finally:
        if not await asyncio.to_thread(tracing.close, LAST):
            logger.warning("the last traces were not sent: the collector does not answer")


def _redactor(env: Mapping[str, str]) -> Redactor | None:
    if not captures_content(env):
        return None
    from evoclaw.core.redaction import Redactor, secrets_in

    return Redactor(secrets_in(env))
