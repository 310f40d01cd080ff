"""A client's verb that lists a table: the pages of a scan, one request each, as long as somebody asks for the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gear.client import arguments as check
from gear.client.state import State
from gear.page import MOST_LISTED, Page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gear.transport.base import OpenTable, Service

PAGE = 1 << 14
"""Items per page: 0.6 MB, less than a millisecond of the shard's time."""


class Listing(State):
    """What is stored, without drawing it."""

    def scan(self, table: str | None = None, *, page: int = PAGE, timeout: float | None = None) -> Iterator[Page]:
        """List what is stored, page by page, in no particular order.

        An item that is stored from the first page to the last is listed exactly once; one that is inserted or
        evicted meanwhile at most once. Nothing is pinned, drawn or counted as sampled.

        Parameters
        ----------
        page : int
            Items per page at most, up to 65536. The server is busy for a page at a time.
        timeout : float, optional
            Seconds that each page may take. A shard that is being started again is waited for; what lies on one that is
            gone for good is not listed.

        Yields
        ------
        Page
            Ids, trajectories, positions, lengths and raw priorities of up to `page` items.
        """
        timeout, page = check.seconds(timeout), check.count("page", page, MOST_LISTED)
        port = self._tables.port(table, timeout)
        self._publish(port, timeout)
        return _pages(port.session, port.open, page, timeout)


def _pages(session: Service, table: OpenTable, most: int, timeout: float | None) -> Iterator[Page]:
    """Every page that is not empty."""
    cursor = b""
    while True:
        page, cursor = session.scan(table, cursor, most, timeout)
        if len(page):
            yield page
        if not cursor:
            return
