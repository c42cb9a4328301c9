"""Sandbox engines: each runs a command so that it reaches only what the policy allows."""
