"""Providers: clients for the APIs that serve models."""

from evoclaw.providers.names import find_default, how_to_get_a_model, provider_for

__all__ = ["find_default", "how_to_get_a_model", "provider_for"]
