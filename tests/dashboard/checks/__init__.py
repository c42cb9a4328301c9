"""The type checker and the linter of the dashboard's scripts."""
