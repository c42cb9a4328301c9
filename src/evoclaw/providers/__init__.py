"""Providers: clients for the APIs that serve models."""

from evoclaw.providers.registry import find_default_model, model_setup_help, provider_for

__all__ = ["find_default_model", "model_setup_help", "provider_for"]
