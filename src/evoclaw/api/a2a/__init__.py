"""A2A, the Agent2Agent protocol, over HTTP: agent cards, JSON-RPC, and HTTP+JSON."""
