"""Agents: their definitions, prompts, offered tools, and memory."""
