"""Sessions: conversations of several runs, their sub-runs, and the tools of their callers."""
