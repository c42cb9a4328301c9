"""Information flow: untrusted text may inform a run, but it may not trigger an action."""
