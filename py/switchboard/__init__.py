"""Switchboard: a durable work queue for AI agents that lives in PostgreSQL.

The product is SQL (``db/``); this package authenticates, forwards, and runs things.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("switchboard")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"

__all__ = ["__version__"]
