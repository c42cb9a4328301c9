"""Conversations, and what runs do in each other's."""
