"""Runs: who waits for a turn, who drives what, and what is wanted of it."""
