"""Metrics of stored runs and calls, folded from their records."""
