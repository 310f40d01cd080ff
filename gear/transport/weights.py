"""Published arrays over the control channel: raw bytes behind the header, in pieces where they are many.

A version is sent to memory of its own at the shard and takes the old one's place when it is sealed; a reader reads the
version it was told of until it has all of it. Whoever dies on the way leaves nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from gear.arrays import lay_out
from gear.errors import DeadlineExceeded, GearError, PinLost, ProtocolError
from gear.transport import messages as m
from gear.transport.remote import LEAST, Remote, deadline_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from gear.arrays import Entry, Parcel
    from gear.transport.channel import Buffer
    from gear.transport.conversation import Call

FLYING = 3
"""Pieces under way at a time."""

_LATE = "publish timed out on the way; the version before stays"


class RemoteWeights(Remote):
    """The part of a `Session` that publishes arrays and fetches them."""

    def publish(self, name: str, parcel: Parcel, version: int, timeout: float | None) -> int:
        """Replace what is published under a name."""
        deadline = deadline_of(timeout)
        rows = (_piece(parcel, 0, parcel.nbytes),) if parcel.nbytes <= m.PIECE else ()
        opening = self._ask(m.Publish(name, parcel.entries, version), deadline, rows)
        if isinstance(opening, m.Published):
            return opening.version
        try:
            self._store(opening.ticket, parcel, deadline)
        except BaseException:
            self._discard(opening.ticket)
            raise
        sealed = self._ask(m.Install(opening.ticket), deadline)
        if not isinstance(sealed, m.Published):
            raise ProtocolError(f"expected Published from the server, got {type(sealed).__name__}")
        return sealed.version

    def _ask(self, body: m.Message, deadline: float, rows: Sequence[Buffer] = ()) -> m.Published | m.Staged:
        """Ask for what may publish something."""
        with self._talking() as talk:
            try:
                answer = talk.ask(body, deadline, rows, self._unwanted_ticket).answer
            except DeadlineExceeded as error:
                raise DeadlineExceeded(f"{error}; whether it will be published is unknown") from None
        if not isinstance(answer, (m.Published, m.Staged)):
            raise ProtocolError(f"expected Published from the server, got {type(answer).__name__}")
        return answer

    def _store(self, ticket: int, parcel: Parcel, deadline: float) -> None:
        flying: deque[Call] = deque()
        for begin in range(0, parcel.nbytes, m.PIECE):
            if len(flying) == FLYING:
                self._answer(flying.popleft(), deadline, _LATE)
            piece = _piece(parcel, begin, min(begin + m.PIECE, parcel.nbytes))
            with self._talking() as talk:
                flying.append(talk.post(m.Store(ticket, begin), (piece,)))
        while flying:
            self._answer(flying.popleft(), deadline, _LATE)

    def _answer(self, call: Call, deadline: float, late: str) -> None:
        with self._talking() as talk:
            if not talk.until(lambda: call.done, deadline):
                raise DeadlineExceeded(late)
            talk.used = time.monotonic()
        if isinstance(call.answer, m.Failed):
            raise call.answer.error()

    def fetch(
        self, name: str, newer_than: int, timeout: float | None
    ) -> tuple[int, tuple[Entry, ...], npt.NDArray[np.uint8]]:
        """The latest version, once it is newer than that."""
        deadline = deadline_of(timeout)
        while True:
            left = None if timeout is None else max(0.0, deadline - time.monotonic())
            with self._talking() as talk:
                call = talk.ask(m.Fetch(name, newer_than, left), deadline, undo=self._unwanted_ticket)
            answer = call.answer
            if not isinstance(answer, m.Fetched):
                raise ProtocolError(f"expected Fetched from the server, got {type(answer).__name__}")
            out = np.empty(lay_out(answer.entries)[1], np.uint8)
            if not answer.ticket:
                _fill(out, call.frames)
                return answer.version, answer.entries, out
            try:
                self._read(answer.ticket, out)
                return answer.version, answer.entries, out
            except PinLost:  # newer versions needed its memory: one of them is there now
                continue
            finally:
                self._discard(answer.ticket)

    def _unwanted_ticket(self, call: Call) -> None:
        """An answer came after its caller had given up."""
        if self._talk is not None and isinstance(call.answer, (m.Staged, m.Fetched)) and call.answer.ticket:
            self._talk.post(m.Discard(call.answer.ticket))

    def _discard(self, ticket: int) -> None:
        with contextlib.suppress(GearError), self._talking() as talk:
            talk.post(m.Discard(ticket))

    def _read(self, ticket: int, out: npt.NDArray[np.uint8]) -> None:
        flying: deque[tuple[int, Call]] = deque()
        for begin in range(0, len(out), m.PIECE):
            if len(flying) == FLYING:
                self._take_piece(*flying.popleft(), out)
            nbytes = min(m.PIECE, len(out) - begin)
            with self._talking() as talk:
                flying.append((begin, talk.post(m.Read(ticket, begin, nbytes))))
        while flying:
            self._take_piece(*flying.popleft(), out)

    def _take_piece(self, begin: int, call: Call, out: npt.NDArray[np.uint8]) -> None:
        self._answer(call, deadline_of(LEAST), f"fetch: the server sent nothing for {LEAST:g} s")
        _fill(out[begin : begin + m.PIECE], call.frames)


def _piece(parcel: Parcel, begin: int, end: int) -> memoryview:
    """A copy of those bytes: what the caller does to its arrays later does not travel."""
    memory = np.empty(end - begin, np.uint8)
    parcel.write(begin, memory)
    return memory.data


def _fill(out: npt.NDArray[np.uint8], frames: Sequence[Buffer]) -> None:
    came = sum(len(frame) for frame in frames)
    if came != len(out):
        raise ProtocolError(f"expected {len(out)} bytes of published arrays from the server, got {came}")
    at = 0
    for frame in frames:
        out[at : at + len(frame)] = np.frombuffer(frame, np.uint8)
        at += len(frame)
