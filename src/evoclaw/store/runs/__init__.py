"""Stored runs: the queue, the claims of processes, and control requests."""
