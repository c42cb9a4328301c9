"""Workflows: what happened in each, and when each starts next."""
