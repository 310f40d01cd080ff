"""Threads on which blocking verbs run for event loops: made when needed, kept for the next verb, ended when idle.

Every verb under way has a thread of its own. With fewer, verbs that wait could keep away the very one they wait for.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gear.client.deadline import Patience, waiting_with
from gear.errors import Closed, DeadlineExceeded

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

Result = TypeVar("Result")

IDLE = 10.0
"""Seconds after which a thread without work ends."""

_CLOSED = "this client is closed; make a new one"


class _Call(Generic[Result]):
    """One verb on its way."""

    def __init__(self, verb: Callable[[], Result]) -> None:
        self.verb: Callable[[], Result] | None = verb
        self.patience = Patience()
        self.future: Future[Result] = Future()
        self.closed = False

    def run(self) -> None:
        """Do it, in a thread of its own."""
        verb, self.verb = self.verb, None
        assert verb is not None
        try:
            if self.patience.ended:
                raise DeadlineExceeded("it was stopped before it began; nothing has happened")
            with waiting_with(self.patience):
                result = verb()
        except BaseException as error:
            if self.closed and isinstance(error, DeadlineExceeded):
                error = Closed(f"the client was closed while the call waited: {error}")
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Threads:
    """The threads of one client."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: deque[_Call[Any]] = deque()
        self._running: set[_Call[Any]] = set()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    async def run(self, verb: Callable[[], Result], undo: Callable[[Result], None] | None = None) -> Result:
        """Run `verb` on a thread and wait for it without blocking the event loop.

        If the waiting task is cancelled, the verb ends as at a timeout, and the task only then: `outcome` of
        the CancelledError says how. A result that comes nevertheless is given to `undo`.
        """
        import asyncio  # an event loop has imported it; who has none need not

        call = self._start(verb)
        waiting = asyncio.wrap_future(call.future)
        cancelled: asyncio.CancelledError | None = None
        while not waiting.done():
            try:
                await asyncio.wait((waiting,))
            except asyncio.CancelledError as error:
                cancelled = error
                call.patience.end()
            except BaseException:  # the event loop ends without having cancelled its tasks
                call.patience.end()
                if undo is not None:
                    call.future.add_done_callback(lambda done: done.exception() or undo(done.result()))
                raise
        if cancelled is None:
            return waiting.result()
        failure = waiting.exception()
        if failure is not None:
            cancelled.outcome = str(failure)  # type: ignore[attr-defined]
            if isinstance(failure, DeadlineExceeded) and hasattr(failure, "committed"):
                cancelled.committed = failure.committed  # type: ignore[attr-defined]
        elif undo is not None:
            cancelled.outcome = "what had been drawn was given back"  # type: ignore[attr-defined]
            undo(waiting.result())
        else:
            cancelled.outcome = "it was done before it could be stopped"  # type: ignore[attr-defined]
        raise cancelled

    def close(self) -> None:
        """End the waits of all calls; return when they and the threads are over."""
        with self._changed:
            self._closed = True
            for call in self._running.union(self._calls):
                call.closed = True
                call.patience.end()
            threads = [*self._threads]
            self._changed.notify_all()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def _start(self, verb: Callable[[], Result]) -> _Call[Result]:
        call = _Call(verb)
        with self._changed:
            if self._closed:
                raise Closed(_CLOSED)
            self._calls.append(call)
            if len(self._calls) > self._idle:
                thread = threading.Thread(target=self._work, name="gear-verb", daemon=True)
                self._threads.add(thread)
                thread.start()
            else:
                self._changed.notify()
        return call

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call.run()
            with self._changed:
                self._running.discard(call)
            del call  # an idle thread keeps nobody's batch

    def _next(self) -> _Call[Any] | None:
        with self._changed:
            self._idle += 1
            while not self._calls and not self._closed:
                if not self._changed.wait(IDLE):
                    break
            self._idle -= 1
            if not self._calls:
                self._threads.discard(threading.current_thread())
                return None
            call = self._calls.popleft()
            self._running.add(call)
            return call
