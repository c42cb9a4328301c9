"""Notifications: tell a person when something waits for them, or when a run has ended."""
