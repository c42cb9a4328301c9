"""Processes inside a sandbox: workers kept warm where the engine can, cold starts elsewhere."""
