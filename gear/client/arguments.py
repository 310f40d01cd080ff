"""Arguments of the client's verbs, checked before anything happens, for every data path alike.

Each function returns its argument as the rest of the client wants it, or raises with what was expected, what
came and what to do. So neither the wire nor a system call ever meets a value that it cannot carry.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from gear.errors import DataError, SchemaError
from gear.query import MOST_ITEMS, Query
from gear.transport.message import MOST_RANKS, Share
from gear.weights import NORMALIZATIONS, exponent, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from gear.batch import Selection
    from gear.client.port import Port
    from gear.client.spread import Spread
    from gear.schema import Table
    from gear.storage.layout import Layout
    from gear.weights import Normalize

LONGEST = 1e9
"""Seconds (31 years): the longest `ttl`; a timeout beyond waits for ever."""

MOST_PARTIES = 65535
MOST_PREFETCH = 1024
MOST_ENVS = 65536


def seconds(timeout: float | None) -> float | None:
    """A timeout: None and infinity wait for ever (None), a negative one is 0.

    Raises
    ------
    DataError
        If it is no number.
    """
    if timeout is None:
        return None
    value = number(timeout)
    if math.isnan(value):
        raise DataError(f"timeout: expected a number of seconds, or None to wait for ever, got {timeout!r}")
    return None if value > LONGEST else max(0.0, value)


def lifetime(ttl: float) -> float:
    """How long a selection lives at most.

    Raises
    ------
    DataError
        If it is not in (0, `LONGEST`].
    """
    value = number(ttl)
    if not 0.0 < value <= LONGEST:
        raise DataError(
            f"ttl: expected seconds above 0 and at most {LONGEST:g}, got {ttl!r}; "
            "say how long the parties may take to collect"
        )
    return value


def count(name: str, value: int, most: int) -> int:
    """A whole number from 1 to `most`.

    Raises
    ------
    DataError
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not 1 <= value <= most:
        bound = f" and <= {most}" if whole and value > most else ""
        raise DataError(f"{name} must be a whole number >= 1{bound}, got {value!r}")
    return int(value)


def weighing(beta: float | None, normalize: Normalize) -> float | None:
    """What a batch's weights are made of: `beta` as float, or None where it was not given.

    Raises
    ------
    DataError
    """
    if beta is None and normalize in NORMALIZATIONS:
        return None
    return exponent(beta, normalize)  # type: ignore[arg-type]


def at_once(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """As many ids as one update may name.

    Raises
    ------
    DataError
    """
    if len(ids) > MOST_ITEMS:
        raise DataError(f"ids: expected at most {MOST_ITEMS} in one update, got {len(ids)}; update them in parts")
    return ids


def one_table(parts: Sequence[tuple[Port | Spread, object]]) -> Port | Spread:
    """The table that all ids of a call name.

    Raises
    ------
    DataError
    """
    if len(parts) > 1:
        names = ", ".join(repr(port.name) for port, _ in parts)
        raise DataError(f"ids name trajectories of tables {names}; expected those of one table, call once for each")
    return parts[0][0]


def version(value: int) -> int:
    """A policy version.

    Raises
    ------
    DataError
    """
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise DataError(f"version: expected a whole number from 0 to {2**53 - 1}, got {value!r}")
    return int(value)


def version_of(table: Table, value: int | None) -> int | None:
    """The policy version of a trajectory, None for the table's.

    Raises
    ------
    DataError
        If it is none, or the table has no versions.
    """
    if value is None:
        return None
    if not table.versioned:
        raise DataError(
            f"version: table {table.name!r} keeps no versions; declare max_staleness=, sampler=gear.Fresh() or "
            "limiter=gear.StalenessBudget(...)"
        )
    return version(value)


def share(query: Query, world_size: int | None, rank: int | None, draw: int | None) -> Share | None:
    """Which rank's part of a draw is asked for; None where there is one rank alone.

    Raises
    ------
    DataError
    """
    if world_size is None:
        if rank is not None or draw is not None:
            raise DataError(f"rank={rank!r}, draw={draw!r}: expected world_size= beside them, the number of ranks")
        return None
    ranks = count("world_size", world_size, MOST_RANKS)
    if not isinstance(rank, (int, np.integer)) or isinstance(rank, bool) or not 0 <= rank < ranks:
        raise DataError(f"rank: expected a number from 0 to {ranks - 1} (world_size={ranks}), got {rank!r}")
    if query.size * ranks > MOST_ITEMS and query.budget is None:
        raise DataError(
            f"a draw of {query.size} items for each of {ranks} ranks has more than the {MOST_ITEMS} items that it may "
            "have; ask for fewer"
        )
    return Share(ranks, int(rank), None if draw is None else position("draw", draw))


def position(name: str, value: int) -> int:
    """A number of rows, 0 included.

    Raises
    ------
    DataError
    """
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise DataError(f"{name}: expected a whole number >= 0, got {value!r}")
    return int(value)


def publishing(table: Table, publish: str | None) -> Literal["end", "rows"]:
    """When a writer publishes: what is asked for, else what the table declares.

    Raises
    ------
    SchemaError
        If the table does not declare what is asked for.
    """
    declared = table.publish
    if publish not in (None, "end", "rows") or (publish == "rows" and declared == "end"):
        raise SchemaError(
            f"writer: table {table.name!r} declares publish={declared!r}; expected publish=None, 'end'"
            f"{' or ' + repr('rows') if declared == 'rows' else ''}, got {publish!r}"
        )
    return publish or declared  # type: ignore[return-value]


class Queries:
    """Makes queries of plain sizes, each once."""

    def __init__(self) -> None:
        self._known: dict[int, Query] = {}

    def __call__(self, query: int | Query, require: Sequence[str] | str = (), include_open: bool = False) -> Query:
        """The query itself, or the one of that size; with what is asked for beside it."""
        if require or include_open:
            asked = self(query)
            given = (require,) if isinstance(require, str) else tuple(require)
            return msgspec.structs.replace(
                asked, require=(*asked.require, *given), include_open=asked.include_open or include_open
            )
        if isinstance(query, Query):
            return query
        known = self._known.get(query) if type(query) is int else None
        if known is None:
            known = Query(query)
            self._known[known.size] = known
        return known


def collectable(selection: Selection, layouts: Mapping[int, Layout], longest: int) -> None:
    """Refuse a selection that cannot have come from the table: damaged on its way, or made by hand.

    Parameters
    ----------
    layouts : of the table, by the shards that it lies on.
    longest : int
        Rows of the table's longest item.

    Raises
    ------
    DataError
    """
    starts, lengths = selection.starts, selection.lengths
    sizes = [len(a) for a in (selection.ids, selection.probabilities, starts, lengths)]
    if sizes != sizes[:1] * 4:
        raise _damaged(
            selection,
            "equally long ids, probabilities, starts and lengths",
            f"{sizes[0]}, {sizes[1]}, {sizes[2]} and {sizes[3]}",
        )
    near = selection.neighbours
    for name, array, dtype in (
        ("starts", starts, np.int64),
        ("lengths", lengths, np.int32),
        ("neighbours", near, np.int32),
    ):
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
            kind = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise _damaged(selection, f"{name}: {np.dtype(dtype)}[{sizes[0]}]", kind)
    strange = {part.shard for part in selection.parts} - layouts.keys()
    if strange or bool(selection.parts) != (len(layouts) > 1):
        there = ", ".join(map(str, sorted({part.shard for part in selection.parts}))) or "one alone"
        raise _damaged(selection, f"parts on shards {', '.join(map(str, sorted(layouts)))}", there)
    parts = [(layouts[part.shard], first, len(s)) for part, first, s in selection.split()]
    for layout, first, count in parts or [(next(iter(layouts.values())), 0, sizes[0])]:
        rows = layout.blocks * layout.block_steps
        for name, whole, least, most in (("starts", starts, 0, rows - 1), ("lengths", lengths, 1, longest)):
            array = whole[first : first + count]
            if array.size and (array.min() < least or array.max() > most):
                index = int(np.argmax((array < least) | (array > most)))
                raise _damaged(selection, f"{name}[{first + index}] in [{least}, {most}]", str(array[index]))


def _damaged(selection: Selection, expected: str, got: str) -> DataError:
    return DataError(
        f"selection of table {selection.table!r}: expected {expected}, got {got}; "
        "collect it as `select` or `Selection.from_bytes` gave it"
    )
