"""Plans of packed batches: no two batches have as many steps, so only what depends on that is made for each.

A packed plan differs from that of another batch of the same views in where its arrays begin and how long they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.kernels import records as r
from gear.plan import ALIGN, Field, Plan, make_plan

if TYPE_CHECKING:
    from gear.storage.layout import Layout
    from gear.views import AnyView


class PackedPlans:
    """The packed plans of some views of one table.

    Parameters
    ----------
    layout : Layout
    views : tuple of views
        None stand for every column that is not late.
    longest : int
        Steps of the longest item that there can be.
    """

    def __init__(self, layout: Layout, views: tuple[AnyView, ...], longest: int) -> None:
        self._layout, self._views = layout, views
        self._one = make_plan(layout, views, 1, longest, 1)

    def plan(self, size: int, total: int, longest: int) -> Plan:
        """The plan of `size` items of `total` steps together, the longest of which has `longest`."""
        one = self._one
        if one.viewed:  # what is made on the way has several arrays, and masks
            return make_plan(self._layout, self._views, size, longest, total)
        rows, fields, at = one.rows.copy(), [], 0
        targets = []
        for name, shape, dtype, _, nbytes, timed in one.fields:
            count = total if timed else size
            nbytes *= count
            fields.append(Field(name, (count, *shape[1:]), dtype, at, nbytes, timed))
            targets.append(at)
            at += -(-nbytes // ALIGN) * ALIGN
        rows[1:, r.TARGET] = targets
        by_name = {field.name: field for field in fields}
        return one._replace(size=size, total=total, rows=rows, fields=tuple(fields), by_name=by_name, nbytes=at)


def steps_of(lengths: np.ndarray, longest: int) -> int:
    """Steps of all items of those lengths, int32[B], each at most `longest`."""
    return int(np.minimum(lengths, longest).sum(dtype=np.int64))
