"""Questions to shards from somebody who only watches."""

from __future__ import annotations

import os
import signal
import time

import pytest

from gear.errors import AuthenticationError, ProtocolError
from gear.transport import messages as m
from gear.transport.discovery import discover, endpoint_of
from gear.transport.onlooker import ask_each, expect
from tests.transport.helpers import eventually


@pytest.fixture
def shard(server) -> m.Shard:
    return discover(server.address, "", 60.0).shards[0]


def test_every_shard_answers_by_its_number_over_its_socket_and_over_tcp(shard):
    away = m.Shard(7, shard.port, "")  # as seen from another host
    assert endpoint_of(shard, "127.0.0.1").startswith("ipc://")
    assert endpoint_of(away, "127.0.0.1") == f"tcp://127.0.0.1:{shard.port}"
    answers = ask_each([shard, away], "127.0.0.1", "", m.Describe(), 60.0)
    assert {index: type(answer) for index, answer in answers.items()} == {0: m.Described, 7: m.Described}


def test_a_silent_shard_is_left_out_and_delays_the_others_not_beyond_the_timeout(server, shard, session):
    pid = session.info(60.0)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert ask_each([shard], "127.0.0.1", "", m.Measure(), 0.2) == {}
        assert time.monotonic() - began < 30.0
    finally:
        os.kill(pid, signal.SIGCONT)
    assert ask_each([shard], "127.0.0.1", "", m.Measure(), 60.0).keys() == {0}


def test_who_has_asked_leaves_nothing_behind(shard, session):
    for _ in range(3):
        ask_each([shard], "127.0.0.1", "", m.Measure(), 60.0)
    eventually(lambda: session.info(60.0)["clients"] == {"connected": 1, "silent": 0}, "the onlookers were forgotten")


def test_a_token_that_nobody_asks_for_is_an_error(server, shard):
    with pytest.raises(AuthenticationError, match="started without --token-file"):
        ask_each([shard], "127.0.0.1", "wrong-secret", m.Measure(), 5.0)


def test_an_answer_of_another_kind_is_an_error():
    assert expect({0: m.Done()}, m.Done) == {0: m.Done()}
    with pytest.raises(ProtocolError, match="expected Informed from shard 3, got Done"):
        expect({3: m.Done()}, m.Informed)
