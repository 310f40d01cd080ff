"""Plans of packed batches: no two batches have as many steps, so only what depends on that is made for each.

A packed plan differs from that of another batch of the same views in where its arrays begin and how long they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gear.kernels import records as r
from gear.plan import ALIGN, ByName, Field, Plan, item_length, make_plan

if TYPE_CHECKING:
    import numpy.typing as npt

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
        self._varying = item_length(layout.table) == 0
        self._one = make_plan(layout, views, 1, longest, 1)

    def plan(self, lengths: npt.NDArray[np.int32]) -> Plan:
        """The plan of items of those lengths, int32[B]."""
        one, size = self._one, len(lengths)
        total = one.steps_of(lengths)
        if one.viewed:  # what is made on the way has several arrays, and masks
            longest = max(1, int(lengths.max(initial=1))) if self._varying else one.length
            return make_plan(self._layout, self._views, size, min(longest, one.length), total)
        rows, fields, at = one.rows.copy(), [], 0
        targets = []
        for name, shape, dtype, _, nbytes, timed in one.fields:
            count = total if timed else size
            nbytes *= count
            fields.append(Field(name, (count, *shape[1:]), dtype, at, nbytes, timed))
            targets.append(at)
            at += -(-nbytes // ALIGN) * ALIGN
        rows[1:, r.TARGET] = targets
        by_name = ByName({field.name: field for field in fields})
        return one._replace(size=size, total=total, rows=rows, fields=tuple(fields), by_name=by_name, nbytes=at)
