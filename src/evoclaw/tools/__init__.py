"""Tools: the built-in tools: plain functions over injected operations."""
