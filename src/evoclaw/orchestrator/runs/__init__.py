"""Runs: started, scheduled, driven by one process at a time, watched, ended."""
