"""Traces of runs, for any OpenTelemetry collector."""
