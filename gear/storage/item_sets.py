"""Which sets of items a table has: all of them, one for each requirement, one with its open trajectories.

Pure functions of the declared table; `sets` is what kernels do with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gear.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gear.schema import Table


class ItemSet(NamedTuple):
    """A set of items with a sampler structure of its own.

    Attributes
    ----------
    needs : bits of the late columns that its items have.
    with_open : whether rows of the table's open trajectories belong to it.
    """

    number: int
    needs: int = 0
    with_open: bool = False

    def region(self, name: str) -> str:
        """Name of the set's own copy of a region."""
        return f"{name}@{self.number}" if self.number else name


def bits_of(table: Table, names: Iterable[str]) -> int:
    """The bits of late columns: a column's is given by its place among the table's late columns."""
    late = [c.name for c in table.columns if c.late]
    return sum(1 << late.index(name) for name in set(names))


def item_sets(table: Table) -> list[ItemSet]:
    """The sets of a table, by number."""
    sets = [ItemSet(0)]
    sets += [ItemSet(n, bits_of(table, names)) for n, names in enumerate(table.requirements, 1)]
    if table.include_open:
        sets.append(ItemSet(len(sets), with_open=True))
    return sets


def set_number(table: Table, require: tuple[str, ...], include_open: bool) -> int:
    """The number of the set that a query draws from.

    Raises
    ------
    SchemaError
        If the table does not declare it.
    """
    if include_open:
        if require:
            raise SchemaError(
                "include_open=True and require= exclude each other: late columns are filled when a trajectory is sealed"
            )
        if not table.include_open:
            raise SchemaError(
                f"table {table.name!r} keeps no open trajectories to be drawn; declare it with include_open=True"
            )
        return len(table.requirements) + 1
    if not require:
        return 0
    wanted = frozenset(require)
    for number, names in enumerate(table.requirements, 1):
        if frozenset(names) == wanted:
            return number
    declared = ", ".join(map(repr, table.requirements)) or "none"
    raise SchemaError(
        f"table {table.name!r} declares no requirement {tuple(sorted(wanted))}; it declares {declared}; add it to "
        "Table(requirements=[...])"
    )
