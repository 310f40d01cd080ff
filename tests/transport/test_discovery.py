"""Finding a server's shards while the server comes and goes."""

from __future__ import annotations

import threading

import pytest
import zmq

from gear.transport import messages as m
from gear.transport import wire
from gear.transport.discovery import discover

pytestmark = pytest.mark.faults


def test_a_question_that_a_server_took_and_never_answered_is_asked_again():
    """Origin: a supervisor was killed while it started. It listened already, took the question, and the client that
    had asked waited for its whole timeout though the next supervisor answered everybody else."""
    context, found = zmq.Context(), []
    dying = context.socket(zmq.ROUTER)
    port = dying.bind_to_random_port("tcp://127.0.0.1")
    asking = threading.Thread(target=lambda: found.append(discover(f"127.0.0.1:{port}", "", 30.0)))
    asking.start()
    assert dying.poll(60_000), "it is asked"
    dying.recv_multipart()
    dying.close(0)
    context.term()
    context = zmq.Context()
    next_one = context.socket(zmq.ROUTER)
    next_one.bind(f"tcp://127.0.0.1:{port}")
    assert next_one.poll(60_000), "it is asked too"
    route, *parts = next_one.recv_multipart()
    asked = wire.decode_request(parts)
    answer = m.Discovered("name", 1.0, [m.Shard(0, 7, "")], 1)
    next_one.send_multipart([route, wire.encode(m.Answer(m.PROTOCOL, asked.request, answer))])
    asking.join(60)
    next_one.close(0)
    context.term()
    assert found == [answer]
