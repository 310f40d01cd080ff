"""What is worked out of a plan once: a plan is made once and used for thousands of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from gear.plan import Plan

Made = TypeVar("Made")


class PerPlan(Generic[Made]):
    """Kept for so many plans at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: dict[int, tuple[Plan, Made]] = {}  # by the id of a plan, which cannot be hashed; it lives here

    def of(self, plan: Plan, make: Callable[[Plan], Made]) -> Made:
        """What `make` says of that plan."""
        known = self._made.get(id(plan))
        if known is None:
            if len(self._made) >= self._most:
                self._made.clear()
            known = self._made[id(plan)] = plan, make(plan)
        return known[1]
