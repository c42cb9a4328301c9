"""The databases of the store's tests, for runs: each is tried on both."""

from tests.store.conftest import place, postgres_server, postgres_url

__all__ = ["place", "postgres_server", "postgres_url"]
