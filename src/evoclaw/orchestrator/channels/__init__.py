"""How people reach the orchestrator other than by calling its API."""
