"""Workflows: durable sequences of steps that call agents, tools and other workflows."""
