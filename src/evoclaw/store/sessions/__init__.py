"""Sessions: conversations, their runs and records, and how they are forgotten."""
