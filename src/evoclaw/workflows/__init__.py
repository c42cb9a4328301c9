"""Workflows: steps that call agents and tools."""
