"""Orchestrator: the host of runs."""
