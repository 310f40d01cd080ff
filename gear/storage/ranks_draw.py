"""One draw for all ranks: enough items for each, and whose each item is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gear.batch import Selection
from gear.errors import DataError
from gear.query import MOST_ITEMS
from gear.storage import fields as f
from gear.storage.budget_claimed import unit_lengths
from gear.storage.claims import NOBODY
from gear.storage.shares import even, within

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.selects import Select
    from gear.storage.table import StoredTable


class Divided(NamedTuple):
    """A draw, pinned for nobody, and the rank of each item."""

    whole: Selection
    owners: npt.NDArray[np.int64]


def try_parts(stored: StoredTable, request: Select, hurry: bool) -> bool:
    """Serve a request for all ranks, if everybody gets something; `done` gets a Divided or a DataError."""
    try:
        _possible(stored, request)
        whole = _draw(stored, request, hurry)
    except DataError as error:
        request.done(error)
        return True
    if not isinstance(whole, Selection):
        request.credit = whole or 0
        return False
    request.credit = 0
    units = np.arange(len(whole))
    if request.consumer >= 0 and stored.claims is not None:
        units = stored.claims.units_of(whole.ids)
    firsts, lengths = unit_lengths(units, whole.lengths)
    if len(lengths) < request.ranks:  # nobody may go with nothing
        stored.pins.release(NOBODY, whole.pin, False)
        return False
    if request.budget is None:
        owners = even(lengths, request.ranks)
    else:
        owners = within(lengths, request.ranks, request.size, *request.budget)
    request.done(Divided(whole, np.repeat(owners, np.diff(firsts, append=len(whole)))))
    return True


def _possible(stored: StoredTable, request: Select) -> None:
    """Refuse what can never be drawn.

    Raises
    ------
    DataError
    """
    most = int(stored.params[f.P_MOST])
    if most and most // max(1, stored.table.group_size) < request.ranks:
        what = "a group" if stored.table.group_size else "an item"
        raise DataError(
            f"table {stored.table.name!r} holds at most {most} items: never {what} for each of {request.ranks} ranks; "
            "raise the size of its queue"
        )
    if request.budget is None and request.size * request.ranks > MOST_ITEMS:
        raise DataError(
            f"a draw of {request.size} items for each of {request.ranks} ranks has more than {MOST_ITEMS}; ask for less"
        )


def _draw(stored: StoredTable, request: Select, hurry: bool) -> Selection | int | None:
    """As `StoredTable.select` and the others, for nobody."""
    size, ranks, budget = request.size, request.ranks, request.budget
    if request.consumer >= 0:
        return stored.claim(NOBODY, request.consumer, size, 1, request.ttl, hurry, (0, 0), budget, ranks)
    if budget is not None:
        size = min(size, MOST_ITEMS // ranks)
        return stored.select_steps(NOBODY, size, 1, request.ttl, request.which, (0, 0), budget, ranks)
    return stored.select(NOBODY, size * ranks, 1, request.ttl, request.credit, hurry, request.which)
