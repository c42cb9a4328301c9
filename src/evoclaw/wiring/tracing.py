"""Opens the tracing of this process, if OTEL_… variables configure an exporter."""

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
FINAL_EXPORT_TIMEOUT_S = 2.0
"""Seconds to export the last spans when a process ends; the rest is lost."""


@asynccontextmanager
async def open_tracing(env: Mapping[str, str], name: str) -> AsyncGenerator[Tracing | None]:
    """Trace while the block runs; None if no exporter is configured.

    Args:
        env: The OTEL_… variables.
        name: The service name in traces, unless `OTEL_SERVICE_NAME` is set.
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
        text = "OTEL_… variables enable tracing, but its packages are not installed: run "
        raise ConfigError(
            f"{text}`pip install 'evoclaw[otel]'`, or set OTEL_SDK_DISABLED=true"
        ) from None
    from evoclaw.observe.tracing.logs import trace_ids_in_logs

    tracing = Tracing(open_spans(kinds, name), content=_redactor(env))
    try:
        with trace_ids_in_logs():
            yield tracing
    finally:
        if not await asyncio.to_thread(tracing.close, FINAL_EXPORT_TIMEOUT_S):
            logger.warning("the last spans were not exported: the collector does not answer")


def _redactor(env: Mapping[str, str]) -> Redactor | None:
    if not captures_content(env):
        return None
    from evoclaw.core.redaction import Redactor, secrets_in

    return Redactor(secrets_in(env))
