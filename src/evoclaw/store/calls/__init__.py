"""Calls: what was asked of edges, what they did, and the receipts of it."""
