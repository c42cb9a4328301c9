"""Calls: the outbox of commands, the journal of an edge, receipts and artifacts."""
