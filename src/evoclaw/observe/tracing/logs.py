"""Log lines that say which trace they belong to."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from evoclaw.core.tracing import here


class TraceIdFilter(logging.Filter):
    """Lets every line pass, and notes on it where its task is in a trace."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Give a record `trace_id` and `span_id`: as spans say them, or empty."""
        place = here()
        record.trace_id = f"{place.trace_id:032x}" if place is not None else ""
        record.span_id = f"{place.span_id:016x}" if place is not None and place.span_id else ""
        return True


class TraceIdFormatter(logging.Formatter):
    """A line as it is, and behind it the trace, if it belongs to one."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a line."""
        line = super().format(record)
        marks = [
            f"{name}={value}"
            for name in ("trace_id", "span_id")
            if (value := getattr(record, name, ""))
        ]
        return " ".join((line, *marks))


@contextmanager
def trace_ids_in_logs() -> Generator[None]:
    """Mark log lines while the block runs: those of handlers that are there, or of one of ours."""
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
    """What `logging` does where nobody has chosen anything: warnings, to the error output."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(TraceIdFormatter())
    return handler
