"""The audit: who did what, where, and who allowed it, in a tamper-evident chain."""
