"""Providers: clients for the APIs that serve models."""
