"""Databases: SQLite and PostgreSQL behind one interface, for every kind of store."""
