"""Information flow: what was read may inform a run, and never press a button."""
