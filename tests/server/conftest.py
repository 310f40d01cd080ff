"""The fixtures of the transport tests, for tests of the server."""

from __future__ import annotations

from tests.transport.conftest import name, open_session, path, server, session, shards

__all__ = ["name", "open_session", "path", "server", "session", "shards"]
