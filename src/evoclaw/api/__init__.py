"""The HTTP API, the OpenAI-compatible API and the MCP server."""
