"""A real browser for the tool `browser`: Chromium, one profile for each session."""
