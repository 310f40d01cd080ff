"""A staging area: the last steps of N environments, which one assignment per column writes for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gear.client.values import rows_of, storage_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gear.client.encode import Codec


class Stage:
    """Private memory for `depth` steps of `count` environments.

    Attributes
    ----------
    of_env : dtype[depth, *shape] per per-step column, for each environment.
    """

    def __init__(self, codec: Codec, count: int, depth: int) -> None:
        self._codec, self._count, self.depth = codec, count, depth
        columns = codec.step_columns
        # An environment's rows lie side by side: they move on block by block, each a plain copy.
        memory = [np.zeros((count, depth, *c.shape), storage_dtype(c)) for c in columns]
        self.of_env = [[column[i] for column in memory] for i in range(count)]
        dtypes = [None if c.dtype == "bfloat16" else storage_dtype(c) for c in columns]
        kinds = [(c.name, dtype, (count, *c.shape), c) for c, dtype in zip(columns, dtypes, strict=True)]
        self._of_step = [
            [(*kind, column[:, at]) for kind, column in zip(kinds, memory, strict=True)] for at in range(depth)
        ]

    def put(self, step: Mapping[str, Any], at: int) -> None:
        """Write a step of all environments, per-step columns as [N, *shape], into row `at`.

        Raises
        ------
        DataError
            If it does not fit; the row may hold anything then.
        """
        ndarray, fields = np.ndarray, self._of_step[at]
        try:
            if len(step) != len(fields):
                raise KeyError
            for name, dtype, shape, column, place in fields:
                value = step[name]
                if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                    value = rows_of(column, value, self._count)
                place[:] = value
        except KeyError:  # nested, or with wrong names
            for field, value in zip(fields, self._codec.steps_of(step, self._count), strict=True):
                field[-1][:] = value
