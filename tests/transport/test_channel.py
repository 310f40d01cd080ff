"""Connections that are dropped without a word must not harm the others of the process."""

from __future__ import annotations

import os
import socket
import time

import pytest
import zmq

from gear.transport.channel import Channel
from gear.transport.lane import Lane


@pytest.fixture
def bell():
    descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield descriptor
    os.close(descriptor)


def echo(router: zmq.Socket, channel: Channel) -> list[bytes] | None:
    channel.send([b"hello"])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if router.poll(5):
            router.send_multipart(router.recv_multipart())
        channel.wait(0.005)
        if (answer := channel.receive()) is not None:
            return answer
    return None


def test_channels_that_were_never_closed_do_not_block_the_others(bell, tmp_path):
    """A monitored socket whose events nobody receives would stop the I/O thread of the whole process."""
    context, descriptors = zmq.Context(), len(os.listdir("/proc/self/fd"))
    for number in range(60):
        router = context.socket(zmq.ROUTER)
        endpoint = f"ipc://{tmp_path}/{number}"
        router.bind(endpoint)
        channels = [Channel(endpoint, 1.0, bell) for _ in range(3)]
        assert [echo(router, channel) for channel in channels] == [[b"hello"]] * 3
        router.close(0)  # what the monitors tell from now on is told to nobody
        del channels
    context.term()
    deadline = time.monotonic() + 60
    while len(os.listdir("/proc/self/fd")) > descriptors + 5:
        assert time.monotonic() < deadline, "dropped channels keep their descriptors"
        time.sleep(0.01)


def test_nothing_but_the_bell_ends_a_sleep_on_a_channel_that_was_closed(bell, tmp_path):
    """Else whoever waits for the next attempt to connect would spin until then."""
    ends = socket.socketpair(socket.AF_UNIX)
    channel = Channel(f"ipc://{tmp_path}/none", 1.0, bell)
    channel.take(Lane(ends[0]))
    channel.close()
    began = time.monotonic()
    channel.wait(0.05)
    assert time.monotonic() - began >= 0.04
    os.eventfd_write(bell, 1)
    channel.wait(3600.0)
    ends[1].close()
