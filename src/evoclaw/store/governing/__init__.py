"""Governing: what rules need to remember, for all who share a store."""
