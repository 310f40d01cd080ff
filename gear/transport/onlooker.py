"""One question to every shard of a server, for who only watches: no shared memory, no thread, no tables.

A connection is made for the question and left again, so a server that went away and came back is found
without further ado, also from another host. A shard that stays silent delays nobody: the others' answers come.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import zmq

from gear.errors import ProtocolError
from gear.transport import messages as m
from gear.transport import wire
from gear.transport.channel import context
from gear.transport.discovery import endpoint_of
from gear.transport.keys import secure

if TYPE_CHECKING:
    from gear.transport.keys import ClientKeys

_QUESTION, _GOODBYE = 1, 2


def ask_each(
    shards: Sequence[m.Shard],
    host: str,
    token: str,
    question: m.Message,
    timeout: float,
    keys: ClientKeys | None = None,
) -> dict[int, Any]:
    """The body of each shard's answer, by the shard's number; shards that do not answer in time are left out.

    Parameters
    ----------
    shards, host
        As discovery names them; `host` for shards without a local socket.
    timeout : float
        Seconds for all of them together.
    keys : ClientKeys, optional
        With which shards without a local socket are asked.

    Raises
    ------
    GearError
        What a shard answered, if it refused.
    """
    deadline = time.monotonic() + timeout
    asked: dict[zmq.Socket[bytes], m.Shard] = {}
    answers: dict[int, Any] = {}
    poller = zmq.Poller()
    try:
        for shard in shards:
            socket = context().socket(zmq.DEALER)
            asked[socket] = shard
            socket.linger = 0
            socket.setsockopt(zmq.IPV6, host.startswith("["))
            socket.setsockopt(zmq.MAXMSGSIZE, 1 << 26)
            endpoint = endpoint_of(shard, host)
            secure(socket, endpoint, keys)
            socket.connect(endpoint)
            hello = m.Hello(secrets.token_bytes(16), token, 1)
            for number, body in enumerate((hello, question, m.Goodbye())):
                socket.send(wire.encode(m.Envelope(m.PROTOCOL, number, number, [], body)))  # type: ignore[arg-type]
            poller.register(socket, zmq.POLLIN)
        left = len(asked)
        while left:
            ready = poller.poll(int(max(0.0, deadline - time.monotonic()) * 1000))
            if not ready:
                break
            for socket, _ in ready:
                if _hear(socket, asked[socket], answers):
                    poller.unregister(socket)
                    left -= 1
    finally:
        for socket in asked:
            socket.close(0)
    return answers


def _hear(socket: zmq.Socket[bytes], shard: m.Shard, answers: dict[int, Any]) -> bool:
    """Take in one message; whether it was the last."""
    answer = wire.decode_answer(socket.recv_multipart())
    if isinstance(answer.body, m.Failed):
        raise answer.body.error()
    if answer.request == _QUESTION:
        answers[shard.index] = answer.body
    return answer.request == _GOODBYE


def expect(answers: dict[int, Any], kind: type) -> dict[int, Any]:
    """The answers themselves.

    Raises
    ------
    ProtocolError
        If one is of another kind.
    """
    for index, answer in answers.items():
        if type(answer) is not kind:
            raise ProtocolError(f"expected {kind.__name__} from shard {index}, got {type(answer).__name__}")
    return answers
