"""MCP: the tools of anybody's server, run there."""
