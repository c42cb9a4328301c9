"""A real browser for the tool `browser`: Chromium, one profile per session."""
