"""Observability: audit, metrics and traces, all of them sinks."""
