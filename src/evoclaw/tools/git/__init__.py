"""The git tools, safe on repositories of strangers."""
