"""Cli: the `evoclaw` command."""
