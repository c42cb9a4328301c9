"""The OpenAI-compatible API: agents as models of chat completions."""
