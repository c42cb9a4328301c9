"""MCP: the tools of third-party servers."""
