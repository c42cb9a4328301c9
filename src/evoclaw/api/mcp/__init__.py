"""The MCP server: tools, resources, prompts and tasks for MCP clients."""
