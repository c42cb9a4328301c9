"""Store: persistent state, in SQLite or PostgreSQL."""
