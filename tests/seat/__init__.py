"""Tests from the user's chair: a settings file or a command, real processes, and the effect."""
