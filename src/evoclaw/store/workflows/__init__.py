"""Workflows: their runs, events and schedules."""
