"""Providers: how a model is reached."""
