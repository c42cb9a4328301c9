"""Bundles of instructions and programs from disk."""
