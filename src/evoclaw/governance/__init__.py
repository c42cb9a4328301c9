"""Governance: the policies that decide whether a call may run, and what it may spend."""
