"""Groups: trajectories inserted under one key, gathered until they are all there, judged, and handed to the lines.

Each arrival finds its group by the exact key, whatever arrived in between. A complete group passes the table's filter
and waits in the consumers' lines as one unit, or leaves the table whole. A group that is late leaves, or goes on short;
its deadline is an event of the owner's timer. Keys stand in the segment; all else is made from them again by
`restart`. Single-threaded, like the table that owns it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gear.grouping import KEY_BYTES, Groups, decode_key
from gear.plan import numpy_dtype
from gear.storage import fields as f
from gear.storage.deadlines import Deadlines
from gear.storage.evict import evict
from gear.storage.item_sets import bits_of
from gear.storage.lines import enlist

if TYPE_CHECKING:
    import numpy.typing as npt

    from gear.storage.claims import Claims
    from gear.storage.layout import Layout

logger = logging.getLogger(__name__)

_NAMED = 8
"""Keys of dropped groups that one line of the log names."""


@dataclass(eq=False, slots=True)
class Group:
    """Members so far, by slot and by the number of their trajectory; `over`: nobody waits for more."""

    key: bytes
    slots: list[int]
    orders: list[int]
    over: bool = False


class GroupBook:
    """The groups of one table that are not in the lines yet."""

    def __init__(self, segment: npt.NDArray[np.uint8], layout: Layout, claims: Claims) -> None:
        rule = layout.table.sampler
        assert isinstance(rule, Groups)
        assert layout.keys is not None
        self._segment, self._layout, self._claims, self._rule = segment, layout, claims, rule
        self._slots, self._mates = layout.view(segment, "slots"), layout.view(segment, "mates")
        self._units = layout.view(segment, "units")
        base = layout.regions["trajectories"].offset + layout.keys.offset
        self._keys = segment[base : base + KEY_BYTES * layout.slots].reshape(layout.slots, KEY_BYTES)
        self._values = None if rule.filter is None else _column(segment, layout, rule.filter.column)
        filtered = () if rule.filter is None else (rule.filter.column,)
        self._needs = bits_of(layout.table, [n for n in filtered if layout.table.column(n).late])
        self._late = layout.view(segment, "late")
        self._gathering: dict[bytes, Group] = {}
        self._unjudged: dict[int, Group] = {}  # complete, but the filter's column is not: by each member
        self._deadlines: Deadlines[Group] = Deadlines(lambda group: group.over)
        self.completed = self.filtered = self.late = self.short = 0

    # Arrivals

    def arrived(self, slot: int) -> None:
        """A trajectory was committed."""
        now = time.monotonic() if self._rule.deadline != float("inf") else 0.0
        due = self._deadlines.next
        if due is not None and due <= now:
            self.expire(now)
        key = self._keys[slot].tobytes()
        self._units[slot] = 0
        group = self._gathering.get(key)
        if group is not None and not self._there(group):  # driven out, all of it
            group.over = True
            group = None
        if group is None:
            group = self._gathering[key] = Group(key, [], [])
            self._deadlines.add(now + self._rule.deadline, group)
        else:
            first = group.slots[0]
            self._mates[slot], self._mates[first] = self._mates[first], slot
        group.slots.append(slot)
        group.orders.append(int(self._slots[slot, f.ORDER]))
        if len(group.slots) == self._rule.size:
            self.completed += 1
            self._close(group)
        elif len(self._gathering) > 64 + 2 * int(self._slots.shape[0]):
            self._sweep()

    def _there(self, group: Group) -> bool:
        """Whether the group is still stored: removers take it whole or not at all."""
        records = self._slots[group.slots]
        return bool((records[:, f.ORDER] == group.orders).all() and (records[:, f.STATE] == f.CLOSED).all())

    def _sweep(self) -> None:
        for key, group in list(self._gathering.items()):
            if not self._there(group):
                group.over = True
                del self._gathering[key]

    def _close(self, group: Group) -> None:
        """No more members are waited for."""
        group.over = True
        if self._gathering.get(group.key) is group:
            del self._gathering[group.key]
        if self._known(group):
            self._judge(group)
        else:
            self._unjudged.update(dict.fromkeys(group.slots, group))

    def _known(self, group: Group) -> bool:
        """Whether every member has the filter's column, which may come after the insert."""
        return not self._needs or bool((self._late[group.slots, f.LATE_BITS] & self._needs == self._needs).all())

    def filled(self, slots: list[int]) -> None:
        """Columns of these slots have come: judge the groups that waited for them."""
        for group in {id(g): g for slot in slots if (g := self._unjudged.get(slot)) is not None}.values():
            if not self._there(group) or self._known(group):
                for slot in group.slots:
                    if self._unjudged.get(slot) is group:  # one that was driven out has left its slots to others
                        del self._unjudged[slot]
                if self._there(group):
                    self._judge(group)

    def _judge(self, group: Group) -> None:
        rule = self._rule.filter
        if rule is not None and self._values is not None and not rule.keeps(self._values[group.slots]):
            self.filtered += 1
            logger.info("table %s: group %r is dropped by %r", self._name, decode_key(group.key), rule)
            self._drop(group)
            return
        enlist(self._segment, self._layout.params, np.array(group.slots, np.int64))

    def _drop(self, group: Group) -> None:
        for slot in group.slots:
            evict(self._segment, self._layout.params, slot, False)

    @property
    def _name(self) -> str:
        return self._layout.table.name

    # Time

    @property
    def next_deadline(self) -> float | None:
        """`time.monotonic()` at which a group is late."""
        return self._deadlines.next

    def expire(self, now: float) -> bool:
        """Drop groups that are late, or let them go on short; whether there were any."""
        late = [group for group in self._deadlines.due(now) if self._there(group)]
        dropped = []
        for group in late:
            if self._rule.short == "deliver":
                self.short += 1
                self._close(group)
            else:
                self.late += 1
                group.over = True
                del self._gathering[group.key]
                dropped.append(group)
                self._drop(group)
        if dropped:
            named = ", ".join(f"{decode_key(g.key)!r} ({len(g.slots)} of {self._rule.size})" for g in dropped[:_NAMED])
            more = f" and {len(dropped) - _NAMED} more" if len(dropped) > _NAMED else ""
            logger.warning(
                "table %s: %d groups were not complete after %g s and are dropped: %s%s",
                self._name, len(dropped), self._rule.deadline, named, more,
            )  # fmt: skip
        return bool(late)

    # The whole

    def reset(self) -> None:
        """The table has been emptied and counts anew."""
        for group in self._gathering.values():
            group.over = True
        self._gathering.clear()
        self._unjudged.clear()
        self.completed = self.filtered = self.late = self.short = 0

    def restart(self) -> None:
        """Make the groups anew from the keys, and the lines from the acknowledgements, after the shard's death."""
        closed = np.flatnonzero(self._slots[:, f.STATE] == f.CLOSED)
        published = closed[self._units[closed] != 0]
        self._claims.restart(published[np.argsort(self._units[published], kind="stable")])
        gathering = closed[self._units[closed] == 0]
        self._mates[gathering] = gathering
        for slot in gathering[np.argsort(self._slots[gathering, f.ORDER])].tolist():
            self.arrived(slot)

    def info(self) -> dict[str, Any]:
        """Groups that are gathering, and how many were completed, filtered, late and short. Plain data."""
        return {
            "gathering_groups": sum(self._there(group) for group in self._gathering.values()),
            "completed_groups": self.completed,
            "filtered_groups": self.filtered,
            "late_groups": self.late,
            "short_groups": self.short,
        }


NO_GROUPS = dict.fromkeys(("gathering_groups", "completed_groups", "filtered_groups", "late_groups", "short_groups"), 0)
"""What tables without groups say."""


def _column(segment: npt.NDArray[np.uint8], layout: Layout, name: str) -> np.ndarray:
    """A column with one number per trajectory, by slot: dtype[slots]."""
    place = layout.placements[name]
    begin = layout.regions["trajectories"].offset + place.offset
    return np.ndarray((layout.slots,), numpy_dtype(place.column.dtype), segment, begin, (place.stride,))
