"""The launcher: it runs with the standard library alone, and starts quickly."""
