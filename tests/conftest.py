"""Shared by all tests."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from hypothesis import settings

# A busy machine is slow, not wrong: figures come from benchmarks, never from timed tests.
settings.register_profile("evoclaw", deadline=None)
settings.load_profile("evoclaw")

# No test talks to strangers. To read the certificates of everybody they might trust takes each
# process a tenth of a second.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("nobody.pem"))
os.environ.pop("SSL_CERT_DIR", None)


def pytest_collection_finish() -> None:
    """Leave what was imported alone when what a test left behind is looked for."""
    gc.collect()
    gc.freeze()
