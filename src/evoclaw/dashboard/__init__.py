"""The dashboard: static files that use only the public HTTP API."""
