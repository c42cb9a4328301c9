"""The git tools, safe in untrusted repositories."""
