"""Limits on what one client makes a server keep: beyond them it is told, and the others notice nothing."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import zmq

import gear
from gear.server.clients import MOST_ANSWERS, MOST_WAITING, Client, Clients
from gear.transport import messages as m
from gear.transport import session_later, wire
from gear.transport.channel import context
from gear.transport.discovery import discover
from tests.transport.helpers import figures, insert, table


def test_answers_that_nobody_takes_in_are_kept_up_to_a_number_and_a_size(monkeypatch):
    client = Client(bytes(16))
    for request in range(1, 2 * MOST_ANSWERS):
        client.remember(request, [b"x"])
    assert len(client.answers) == client.kept_bytes == MOST_ANSWERS
    monkeypatch.setattr("gear.server.clients.MOST_ANSWER_BYTES", 1000)
    client.remember(10**6, [b"y" * 300, b"z" * 300])
    client.remember(10**6 + 1, [b"z" * 300])
    assert client.kept_bytes <= 1000
    client.remember(10**6 + 2, [b"z" * 5000])  # one that is larger is kept alone: it may be on its way
    assert [*client.answers] == [10**6 + 2]
    client.forget_answered(10**6 + 3)
    assert (client.answers, client.kept_bytes) == ({}, 0)


def test_forgetting_some_of_several_answers_counts_right():
    client = Client(bytes(16))
    for request in range(1, 6):
        client.remember(request, [b"x" * request])
    client.forget_answered(3)
    assert ([*client.answers], client.kept_bytes) == ([3, 4, 5], 12)


def test_nothing_is_kept_for_who_is_forgotten_whoever_still_knows_of_it(tmp_path):
    """Origin: fuzzing; deadlines that were over kept clients, and each of those 64 MiB of answers."""
    clients = Clients(tmp_path, bytes(16), 0.0)
    client, _, _ = clients.hello(m.Hello(b"a" * 16, "", 1), b"route", 5)
    client.remember(1, [b"x" * 1000])
    clients.lost(5)
    assert client.answers, "it may come back for them"
    clients.remove(client)
    assert (client.answers, client.kept_bytes) == ({}, 0)


def test_two_that_greet_on_one_connection_do_not_take_each_other_along(tmp_path):
    """Origin: fuzzing; the end of the first one cut the second one off."""
    clients = Clients(tmp_path, bytes(16), 0.0)
    first, _, _ = clients.hello(m.Hello(b"a" * 16, "", 1), b"route", 5)
    second, gone, _ = clients.hello(m.Hello(b"b" * 16, "", 1), b"route", 5)
    assert gone is first
    assert clients.dead(time.monotonic() + 1) == [first]
    clients.remove(first)
    assert clients.find(b"route") is second


def test_more_requests_than_may_wait_are_refused_and_the_others_are_served(server, session, name):
    empty = session.create_table(table(f"{name}-empty"), 60.0).layout.index
    opened = session.create_table(table(name), 60.0)
    one = context().socket(zmq.DEALER)
    one.linger = 0
    one.connect(f"tcp://127.0.0.1:{discover(server.address, '', 60.0).shards[0].port}")
    try:
        one.send(wire.encode(m.Envelope(m.PROTOCOL, 0, 0, [], m.Hello(os.urandom(16), "", 1))))
        assert one.poll(60_000)
        one.recv_multipart()
        for number in range(1, MOST_WAITING + 2):
            one.send(wire.encode(m.Envelope(m.PROTOCOL, number, 1, [], m.Select(empty, 1, 1, 60.0, None))))
        assert one.poll(30_000)
        answer = wire.decode_answer(one.recv_multipart())
        assert answer.request == MOST_WAITING + 1
        assert f"{MOST_WAITING} requests of this client wait for an answer" in answer.body.message
        insert(session, opened, 1)
        assert figures(session, name)["trajectories"] == 1
    finally:
        one.close(0)


def test_rows_that_no_message_carries_are_refused_before_they_are_sent(server, name, monkeypatch):
    """The other end would hang up, and the client send it again and again."""
    monkeypatch.setattr(session_later.m, "MAX_FRAME", 1000)
    with gear.connect(server.address) as client:
        client.create_table(gear.Table(name, [gear.Column("k", (), "int64")], gear.Steps(1000), item=gear.Whole()))
        trajectory = client.open(table=name)
        with pytest.raises(gear.DataError, match="append: 1608 bytes, 1608 of one column, are more than a message"):
            client.append(trajectory, {"k": np.zeros(201, np.int64)}, at=0, table=name)
        assert client.append(trajectory, {"k": np.zeros(125, np.int64)}, at=0, table=name) == 125


def test_tables_and_columns_beyond_the_most_are_refused(monkeypatch):
    columns = [gear.Column(f"c{n}") for n in range(257)]
    with pytest.raises(gear.SchemaError, match="columns has 257 entries, at most 256 are supported"):
        gear.Table("t", columns, gear.Steps(10))
