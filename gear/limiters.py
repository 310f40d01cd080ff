"""What holds samples and inserts back: a least size, a ratio of samples to inserts, queues, stacks, staleness.

Small frozen values like those of `rules`, with Reverb's semantics; `gear.selection.limiter` applies them. Nothing here
knows a column, memory, sockets or kernels.
"""

from __future__ import annotations

import math
from typing import ClassVar

from msgspec.structs import force_setattr

from gear.rules import MAX_INT32, Fifo, Lifo, Spec, real, require, whole_number


class MinSize(Spec, frozen=True, tag="min_size"):
    """Samples wait until the table holds at least `n` items; inserts never wait."""

    n: int = 1

    def __post_init__(self) -> None:
        force_setattr(self, "n", whole_number("MinSize", "n", self.n))


class SampleToInsertRatio(Spec, frozen=True, tag="sample_to_insert_ratio"):
    """Keep sampled items / inserted items near a ratio, with Reverb's semantics.

    With D = samples_per_insert * inserts - samples, a sample waits while the table holds fewer than
    `min_size` items or D - 1 < low; an insert waits while D + samples_per_insert > high, unless the
    table stays at or below `min_size` items. A commit of many items is admitted whole when its first
    item is.

    Parameters
    ----------
    samples_per_insert : float
        Target ratio, > 0.
    min_size : int
        Items needed before the first sample.
    error_buffer : float or (float, float)
        A number e allows D in ``samples_per_insert * min_size -+ e``; a pair is (low, high) itself.
    """

    samples_per_insert: float
    min_size: int
    error_buffer: float | tuple[float, float]

    def __post_init__(self) -> None:
        name = "SampleToInsertRatio"
        ratio = real(name, "samples_per_insert", self.samples_per_insert, 0.0)
        require(0 < ratio < math.inf, f"{name}: samples_per_insert must be > 0 and finite, got {ratio!r}")
        force_setattr(self, "samples_per_insert", ratio)
        force_setattr(self, "min_size", whole_number(name, "min_size", self.min_size))
        if isinstance(self.error_buffer, (tuple, list)):
            require(len(self.error_buffer) == 2, f"{name}: error_buffer as a pair is (low, high)")
            low, high = (real(name, "error_buffer", x, -math.inf) for x in self.error_buffer)
            force_setattr(self, "error_buffer", (low, high))
        else:
            force_setattr(self, "error_buffer", real(name, "error_buffer", self.error_buffer, 0.0))
        low, high = self.bounds
        # Not high - low where one number was given: that may round to a little less than twice as much.
        span = high - low if isinstance(self.error_buffer, tuple) else 2 * self.error_buffer
        least = 2 * max(1.0, ratio)
        require(
            math.isfinite(low) and math.isfinite(high) and span >= least,
            f"{name}: error_buffer allows differences in [{low:g}, {high:g}], a span of {span:g}; "
            f"with samples_per_insert={ratio:g} it must be finite and at least {least:g} or "
            "inserts and samples can block each other for ever",
        )

    @property
    def bounds(self) -> tuple[float, float]:
        """(low, high) of samples_per_insert * inserts - samples."""
        if isinstance(self.error_buffer, tuple):
            return self.error_buffer
        middle = self.samples_per_insert * self.min_size
        return middle - self.error_buffer, middle + self.error_buffer


class _Line(Spec, frozen=True):
    """What a queue and a stack share. Like other limiters, it admits a commit of many items whole with its first."""

    size: int
    samples_per_insert: ClassVar[float] = 1.0
    min_size: ClassVar[int] = 1

    def __post_init__(self) -> None:
        force_setattr(self, "size", whole_number(type(self).__name__, "size", self.size, 1, MAX_INT32))

    @property
    def bounds(self) -> tuple[float, float]:
        """(low, high) of inserts - samples."""
        return 0.0, float(self.size)

    @property
    def order(self) -> Fifo | Lifo:
        """The sampler and the remover that go with it."""
        return Lifo() if isinstance(self, Stack) else Fifo()


class Queue(_Line, frozen=True, tag="queue"):
    """At most `size` items wait; each is delivered once, the oldest first.

    Implies the sampler and remover `Fifo` and ``max_times_sampled=1``. One sample per insert, differences in
    [0, size], as in Reverb. Nothing leaves undelivered, but for what becomes too stale (`max_staleness`) or is
    dropped: where the table's capacity is full before its size, inserts wait for room. A request for more than
    `size` items gets `size` of them, or what there is while an insert waits for room.
    """


class Stack(_Line, frozen=True, tag="stack"):
    """At most `size` items wait; each is delivered once, the newest first.

    Implies the sampler and remover `Lifo` and ``max_times_sampled=1``, and is a `Queue` otherwise.
    """


class StalenessBudget(Spec, frozen=True, tag="staleness_budget"):
    """Inserts wait until the policy is new enough for what they will be trained with; samples wait for an item.

    At most ``(eta + version + 1) * batch`` items are let in, counted from the beginning, where version is what
    `Client.set_version` said last. So an item inserted now is at most `eta` versions behind when its turn comes, if
    each version trains on `batch` items. This is AReaL's staleness-aware control of rollouts (Fu et al., 2025,
    arXiv:2505.24298, eq. 3: ``floor((N - 1) / batch) <= version + eta``). Items that expire undelivered
    (`max_staleness`) do not count.

    Parameters
    ----------
    batch : int
        Items that one version trains on.
    eta : int
        Versions that items may be behind.
    """

    batch: int
    eta: int = 0
    min_size: ClassVar[int] = 1

    def __post_init__(self) -> None:
        force_setattr(self, "batch", whole_number("StalenessBudget", "batch", self.batch, 1, MAX_INT32))
        force_setattr(self, "eta", whole_number("StalenessBudget", "eta", self.eta, 0, MAX_INT32))


Limiter = MinSize | SampleToInsertRatio | Queue | Stack | StalenessBudget
