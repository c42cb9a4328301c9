"""Ids of runs: unique over all tenants, whatever id a user chooses."""
