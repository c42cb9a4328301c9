"""The launcher of the native sandbox: standard library only, and quick to start."""
