"""Runs: begun, driven by one process at a time, watched, ended."""
