"""Governance: may it run, and in what sandbox."""
