"""Executors: where a call runs."""
