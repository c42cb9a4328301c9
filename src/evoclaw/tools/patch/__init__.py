"""The tool `apply_patch`: parses two patch formats and applies a patch atomically."""
