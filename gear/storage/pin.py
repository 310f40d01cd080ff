"""One draw whose rows are pinned, and who reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(eq=False, slots=True)
class Pin:
    """Items kept readable for several parties; a client is one from its first collect until it lets go.

    neighbours: slots of other pieces of their trajectories that are kept too; holders: clients that may be reading;
    parties: how many have still to let go; selector: who drew the items, -1 once it is gone.
    """

    ids: npt.NDArray[np.int64]
    neighbours: npt.NDArray[np.int32]
    selector: int
    parties: int
    deadline: float
    holders: set[int]
    which: int = 0
    """The set that the items were drawn from."""
    settled: bool = False
    delivered: bool = False
    claim: int = 0
    """Number of the claim by which the items were drawn for a consumer: they took no credit of the limiter."""
    credit: int = 0
    """Samples promised by the home of a table that lies on several shards."""
    void: bool = False
    """Drawn before the table was reset, or picked by id: nothing is left to settle."""
    part: bool = False
    """A rank's part of a draw: let go of undelivered, it waits for the rank to ask again, until its deadline."""

    @property
    def charged(self) -> set[int]:
        """Whose share of the reserve its evicted blocks count against."""
        return self.holders or {self.selector}
