"""Processes inside a sandbox engine's cage, warm where the engine can keep one so."""
