"""Malformed input in short: found cases again, some thousand messages to a server, some hundred broken segments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gear
from gear import toml
from gear.errors import ProtocolError, SchemaError
from gear.transport import messages as m
from gear.transport import wire
from tests.fuzz import frames
from tests.fuzz.attack import TABLES, Attack, renumbered, unpacked
from tests.fuzz.sound import SOUND, Known

CORPUS = Path(__file__).with_name("corpus")


@pytest.fixture(scope="module")
def known() -> Known:
    return Known(TABLES)


@settings(max_examples=200)
@given(chance=st.randoms(use_true_random=False), kind=st.sampled_from(frames.KINDS))
def test_a_request_is_read_or_refused_with_an_error_of_ours(known, chance, kind):
    parts = frames.request(chance, 7, known, kind)
    try:
        assert isinstance(wire.decode_request(parts), m.Envelope)
    except ProtocolError:
        pass


def test_what_is_made_as_sound_is_sound(known):
    """Else the fuzzer knocks at the front door only."""
    chance = Random(1)
    for kind, make in SOUND.items():
        for _ in range(20):
            body, buffers = make(chance, known)
            parts = [wire.encode(m.Envelope(m.PROTOCOL, 1, 1, [], body)), *buffers]
            assert type(wire.decode_request(parts).body) is kind


@settings(max_examples=100)
@given(chance=st.randoms(use_true_random=False))
def test_a_file_of_tables_with_flipped_bytes_is_read_or_refused(chance):
    text = frames.damaged(chance, toml.to_toml(TABLES).encode()).decode(errors="replace")
    try:
        assert all(isinstance(table, gear.Table) for table in toml.from_toml(text))
    except SchemaError:
        pass


@pytest.fixture
def attack(start_server):
    server = start_server("--memory", "64MiB", "--max-restarts", "0", "--client-timeout", "2", "--log-level", "warning")
    attack = Attack(server.address, Random(0))
    yield attack
    attack.close()
    assert "Traceback" not in server.log.read_text()


def test_what_was_found_before_goes_beyond_the_front_door():
    """A corpus keeps the version of the wire that it was recorded with."""
    refused: list[str] = []
    messages = [parts for path in CORPUS.glob("*.msgpack") for _, parts in unpacked(path.read_bytes())]
    for parts in messages:
        try:
            wire.decode_request(renumbered(parts, 7))
        except ProtocolError as error:
            refused.append(str(error))
    assert not any("speaks protocol version" in why for why in refused)
    assert len(refused) < len(messages) / 2


def test_a_server_stands_malformed_messages_and_serves_the_others(attack):
    for path in sorted(CORPUS.glob("*.msgpack")):
        attack.replay(unpacked(path.read_bytes()))
        attack.check()
    attack.run(2000)
    assert not attack.found, attack.found
    never = {kind.__name__ for kind in SOUND if not attack.done[kind]}
    assert len(never) < len(SOUND) / 2, f"hardly anything is ever done, so that little is tested: {never}"


def test_a_segment_with_flipped_bits_is_refused_or_recovered_and_goes_on():
    """In a process of its own: what would be wrong ends it, or never ends."""
    command = [sys.executable, "-m", "tests.fuzz.segments", "--count", "100", "--seed", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
