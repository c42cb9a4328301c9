"""Databases: what every kind of store is kept in, SQLite or PostgreSQL."""
