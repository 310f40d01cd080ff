"""The verbs for asyncio: the same ones, each on a thread of the client while its task waits.

They may be awaited from any number of event loops. Cancelling the task ends the verb as its timeout would, and the
task ends when that is done, so that its effect is known: a sample gives back what it drew; an insert is taken back
unless it was committed already; `outcome` of the CancelledError says which. A selection for several parties that
comes for a cancelled task has nobody to release it and ends at its `ttl`.
"""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from gear.client.consuming import Consuming
from gear.client.growing import Growing
from gear.client.inserting import Inserting
from gear.client.later import Later
from gear.client.sampling import Sampling
from gear.client.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from gear.batch import Batch, Selection
    from gear.client.reader import Reader
    from gear.query import Query
    from gear.weights import Normalize

P = ParamSpec("P")
Result = TypeVar("Result")


def _awaited(
    verb: Callable[Concatenate[Any, P], Result], undo: Callable[[Any, Result], None] | None = None
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, Result]]:
    """The coroutine method that runs `verb` on a thread."""

    async def run(self: Any, /, *arguments: P.args, **options: P.kwargs) -> Result:
        back = None if undo is None else partial(undo, self)
        result: Result = await self._threads.run(partial(verb, self, *arguments, **options), back)
        return result

    functools.update_wrapper(run, verb)
    run.__name__, run.__qualname__ = f"{verb.__name__}_async", f"Coroutines.{verb.__name__}_async"
    run.__doc__ = f"`{verb.__name__}` for asyncio, see there and `gear.client.aio`.\n\n        {verb.__doc__}"
    return run


def _drop(client: Growing, trajectory: int) -> None:
    client.drop(trajectory)


def _let_go(client: Sampling, selection: Selection) -> None:
    client.release(selection, delivered=False)


class Coroutines(Inserting, Sampling, Later, Growing, Consuming, Weights):
    """The verbs that may wait, to be awaited."""

    insert_async = _awaited(Inserting.insert)
    insert_many_async = _awaited(Inserting.insert_many)
    flush_async = _awaited(Inserting.flush)
    select_async = _awaited(Sampling.select, _let_go)
    collect_async = _awaited(Sampling.collect)
    open_async = _awaited(Growing.open, _drop)
    append_async = _awaited(Growing.append)
    seal_async = _awaited(Growing.seal)
    fill_async = _awaited(Later.fill)
    update_priorities_async = _awaited(Sampling.update_priorities)
    ack_async = _awaited(Consuming.ack)
    publish_async = _awaited(Weights.publish)
    fetch_async = _awaited(Weights.fetch)

    async def sample_async(
        self,
        query: int | Query = 256,
        table: str | None = None,
        *,
        require: Sequence[str] | str = (),
        include_open: bool = False,
        timeout: float | None = None,
        out: Batch | None = None,
        beta: float | None = None,
        normalize: Normalize = "batch",
        consumer: str | None = None,
        world_size: int | None = None,
        rank: int | None = None,
        draw: int | None = None,
        device: str | None = None,
    ) -> Batch:
        """`sample` for asyncio, see there and `gear.client.aio`; delivered when the task goes on with it."""
        fetch = partial(self._fetch, query, table, require, include_open, timeout, out, beta, normalize, consumer)
        reader, batch = await self._threads.run(partial(fetch, world_size, rank, draw, device), _give_back)
        reader.deliver(batch)
        return batch


def _give_back(drawn: tuple[Reader, Batch]) -> None:
    reader, batch = drawn
    batch.settle()
    reader.release(batch.selection, False)
