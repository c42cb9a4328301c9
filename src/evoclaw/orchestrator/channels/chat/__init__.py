"""Channels for conversations: a person writes to a bot, and a run answers in the same place."""
