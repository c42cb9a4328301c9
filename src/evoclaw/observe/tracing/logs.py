"""Trace and span ids in log lines."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from evoclaw.core.tracing import current_trace


class TraceIdFilter(logging.Filter):
    """Adds the trace and span ids of the current task to every log record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Set `trace_id` and `span_id` in hexadecimal, or empty."""
        place = current_trace()
        record.trace_id = f"{place.trace_id:032x}" if place is not None else ""
        record.span_id = f"{place.span_id:016x}" if place is not None and place.span_id else ""
        return True


class TraceIdFormatter(logging.Formatter):
    """Appends the trace and span ids to the line, if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        line = super().format(record)
        ids = [
            f"{name}={value}"
            for name in ("trace_id", "span_id")
            if (value := getattr(record, name, ""))
        ]
        return " ".join((line, *ids))


@contextmanager
def trace_ids_in_logs() -> Generator[None]:
    """Add trace ids to log lines while the block runs, on the existing handlers or one of ours."""
    root, correlation = logging.getLogger(), TraceIdFilter()
    handlers = list(root.handlers)
    own = None if handlers else _log_to_stderr()
    if own is not None:
        root.addHandler(own)
        handlers.append(own)
    for handler in handlers:
        handler.addFilter(correlation)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(correlation)
        if own is not None:
            root.removeHandler(own)


def _log_to_stderr() -> logging.Handler:
    """Log warnings to stderr, as `logging` does without any configuration."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(TraceIdFormatter())
    return handler
