"""Fixtures of every test."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Return the event loop that the daemon runs on."""
    return "asyncio"
