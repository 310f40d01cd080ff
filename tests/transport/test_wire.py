from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gear.arrays import Entry
from gear.errors import ProtocolError
from gear.transport import messages as m
from gear.transport import wire
from gear.views import View

REQUESTS = [
    (m.Discover("token"), 0),
    (m.Hello(bytes(16), "", 1), 0),
    (m.Attach(bytes(16)), 0),
    (m.Goodbye(), 0),
    (m.CreateTable(b"spec"), 0),
    (m.OpenTable(None), 0),
    (m.OpenTable("table"), 0),
    (m.Lease(0, 5, 1), 0),
    (m.Allocate(255, 5, 1, None), 0),
    (m.GiveBack(0), 2),
    (m.Commit(0, 1, 2), 3),
    (m.Withdraw(0, 1, 5), 0),
    (m.Select(0, 256, 1, 60.0, 0.5), 0),
    (m.Hold(0, 2**62), 0),
    (m.Update(0), 2),
    (m.Reset(0), 0),
    (m.Info(), 0),
    (m.Releases(), 0),
    (m.Explain(0), 0),
    (m.Describe(), 0),
    (m.Measure(), 0),
    (m.Scan(0, b"", 65536), 0),
    (m.Insert(0), 3),
    (m.Insert(0), 9),
    (m.Collect(0, 2**62, m.Shape((View("x", value=1.5),), 64)), 2),
    (m.Select(0, 256, 1, 60.0, 0.5, m.Shape((View("x"),), 64), 0, 3, 9, 99, True), 0),
    (m.Pick(0, 1, 60.0, 3, 9), 1),
    (m.CreateTable(b"spec", True), 0),
    (m.DropHidden(b"spec"), 0),
    (m.Draw(0, 0, 1, 60.0), 0),
    (m.Draw(0, 256, 1, 60.0, m.Shape((View("x"),), 64), 3, 9), 0),
    (m.Credit(0, 256, 1, 60.0, None), 0),
    (m.Await(0, 7), 0),
    (m.Account("table", 1, 5, 2**40, 3, 64, 1), 0),
    (m.Select(0, 256, 1, 60.0, 0.5, None, 9), 0),
    (m.Fill(0, ["a", "b"]), 4),
    (m.SetVersion(0, 7), 0),
    (m.SetVersion(0, None), 0),
    (m.Begin(0, None, 1.0), 1),
    (m.Append(0, 2**62, 3, 5, ["a"], None), 1),
    (m.Seal(0, 2**62, True, ["a"], 1.0), 3),
    (m.Length(0, 2**62), 0),
    (m.Identify(0), 1),
    (m.Select(0, 2, 1, 60.0, None, share=m.Share(8, 7, 2**62)), 0),
    (m.Drop(0), 1),
    (m.Select(0, 256, 1, 60.0, 0.5, None, 0, 0, 0, 0, False, "trainer"), 0),
    (m.Acknowledge(0, "trainer"), 1),
    (m.Publish("policy", (Entry("a/b", "bfloat16", (3, 0)),), 0), 0),
    (m.Publish("policy", (Entry("x", "int64", ()),), 7), 1),
    (m.Store(1, 4 << 20), 1),
    (m.Install(1), 0),
    (m.Fetch("policy", 3, None), 0),
    (m.Read(1, 0, 4 << 20), 0),
    (m.Discard(1), 0),
    (m.Save("0123456789abcdef"), 0),
    (m.Complete("0123456789abcdef"), 0),
    (m.Unsave("0123456789abcdef"), 0),
    (m.AskSaving(), 0),
    (m.Dial(17, 2**24 - 1, 18, 5, "0000:0000:0000:0000:0000:ffff:0a4d:0001", 0, 5), 0),
    (m.Locate(0, 2**62, 64, 3, 2**40), 2),
    (m.Place(0, 12, 3, 4), 0),
    (m.Land(0), 4),
    (m.Forgo(0), 2),
    (m.Unload(0, 17, 2**22, 2**20), 3),
    (m.Push(0, 2**62, m.Shape((), 64), 2**47, 2**32 - 1), 2),
]
ANSWERS = [
    (m.Failed("DataError", "no"), 0),
    (m.Discovered("name", 10.0, [m.Shard(0, 7400, "/dev/shm/x")]), 0),
    (m.Welcome(bytes(16), "/dev/shm/x", False), 0),
    (m.Done(), 0),
    (m.Opened(b"", 0, 0, "/dev/shm/x/0", 4096, 7), 0),
    (m.Granted(), 2),
    (m.Committed(9, [1, 2]), 2),
    (m.Withdrawn(3), 0),
    (m.Selected(1, 1, 0.25, 1e9), 1),
    (m.Selected(1, 1, 0.25, 1e9, 0), 3),
    (m.Gathered(), 0),
    (m.Gathered(), 2),
    (m.Updated(3, 1), 0),
    (m.Informed(b""), 0),
    (m.Explained("why"), 0),
    (m.Recall(0, 5), 0),
    (m.Revoke(0, [1, 2]), 0),
    (m.Described([b"spec"]), 0),
    (m.Scanned(bytes(24), 3, True), 1),
    (m.Selected(1, 1, 0.25, 1e9, 7.5, 3), 1),
    (m.Lend("table", 5, 3, True), 0),
    (m.Version(3), 0),
    (m.Identified(), 1),
    (m.Begun(2**62), 0),
    (m.Grown(8), 0),
    (m.Acknowledged(), 1),
    (m.Staged(1), 0),
    (m.Published(2), 0),
    (m.Fetched(2, (Entry("x", "int64", ()),), 0), 1),
    (m.Saved(100, 50, 7, 1, 0.5), 0),
    (m.Completed("/data/checkpoint-000001", 100, 50), 0),
    (m.Saving(50, 100), 0),
    (m.Ending(True), 0),
    (m.Dialed(17, 0, 18, 1, "fe80::1", 3, 1, False, 2**47, 2**22, 7), 0),
    (m.Located(2**47, 2**47, 2**32 - 1), 5),
    (m.Placed(), 3),
    (m.Pushed(2**32 - 1), 0),
]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=20,
)


@pytest.mark.parametrize(("body", "buffers"), REQUESTS)
def test_a_request_comes_back_as_it_was(body, buffers):
    envelope = m.Envelope(m.PROTOCOL, 7, 5, [(1, 9, True)], body)
    assert wire.decode_request([wire.encode(envelope), *[b""] * buffers]) == envelope


@pytest.mark.parametrize(("body", "buffers"), ANSWERS)
def test_an_answer_comes_back_as_it_was(body, buffers):
    answer = m.Answer(m.PROTOCOL, 7, body)
    assert wire.decode_answer([wire.encode(answer), *[b""] * buffers]) == answer


def test_every_message_is_tested_above():
    assert {type(body) for body, _ in REQUESTS} == set(m.Request.__args__)
    assert {type(body) for body, _ in ANSWERS} == set(m.Reply.__args__)


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_random_bytes_are_refused_and_nothing_else(parts):
    for decode in (wire.decode_request, wire.decode_answer):
        with pytest.raises(ProtocolError):
            decode(parts)


@given(JUNK, st.integers(1, 20), st.lists(JUNK, max_size=6))
def test_well_formed_msgpack_of_the_wrong_shape_is_refused_and_nothing_else(junk, tag, fields):
    for thing in (junk, [m.PROTOCOL, junk, 0, [], [tag, *fields]], [m.PROTOCOL, 1, 0, junk, [tag]]):
        try:
            wire.decode_request([msgspec.msgpack.encode(thing)])
        except ProtocolError:
            pass


def test_another_version_is_refused_naming_both_whatever_its_shape():
    header = msgspec.msgpack.encode([m.PROTOCOL + 6, 12, {"new": "fields"}])
    for decode in (wire.decode_request, wire.decode_answer):
        with pytest.raises(ProtocolError, match=rf"version {m.PROTOCOL + 6}, this end speaks {m.PROTOCOL}; install"):
            decode([header])
    assert wire.request_number(header) == 12


def test_missing_and_additional_buffers_are_refused():
    header = wire.encode(m.Envelope(m.PROTOCOL, 1, 0, [], m.GiveBack(0)))
    for buffers in ([], [b""], [b""] * 3):
        with pytest.raises(ProtocolError, match="GiveBack: expected 2 buffers"):
            wire.decode_request([header, *buffers])
    bulk = wire.encode(m.Envelope(m.PROTOCOL, 1, 0, [], m.Insert(0)))
    with pytest.raises(ProtocolError, match="Insert: expected at least 3 buffers"):
        wire.decode_request([bulk, b"", b""])


def test_a_view_that_is_none_is_refused():
    header = wire.encode(m.Envelope(m.PROTOCOL, 1, 0, [], m.Collect(0, 1, m.Shape((View("name"),), 4))))
    with pytest.raises(ProtocolError, match="Collect|Expected|expected"):
        wire.decode_request([header.replace(b"column", b"colunm"), b"", b""])


@pytest.mark.parametrize(
    "fields",
    [[7, 256, 1, 1], [7, -1, 1, 1], [7, 0, 2**31, 1], [12, 0, 0, 1, 1.0, None], [12, 0, 1, 1, float("nan"), None]],
)
def test_numbers_out_of_range_are_refused(fields):
    with pytest.raises(ProtocolError):
        wire.decode_request([msgspec.msgpack.encode([m.PROTOCOL, 1, 0, [], fields])])


def test_buffers_become_writable_arrays_of_their_own():
    values = wire.array(np.arange(5, dtype=np.int32).tobytes(), np.int32, 5, "values")
    values[0] = 7
    assert values.tolist() == [7, 1, 2, 3, 4]


@pytest.mark.parametrize("nbytes", [3, 24])
def test_buffers_of_another_size_are_refused(nbytes):
    with pytest.raises(ProtocolError, match="values: expected at most 5 elements of 4 bytes"):
        wire.array(bytes(nbytes), np.int32, 5, "values")


@pytest.mark.parametrize(("prioritized", "nbytes"), [(True, 36), (False, 28)])
def test_a_page_whose_size_does_not_fit_is_refused(prioritized, nbytes):
    assert len(wire.page_of(m.Scanned(b"", 3, prioritized), bytes(3 * nbytes))) == 3
    for wrong in (0, 3 * nbytes - 1, 3 * nbytes + 8):
        with pytest.raises(ProtocolError, match=f"expected {3 * nbytes} bytes for 3 items, got {wrong}"):
            wire.page_of(m.Scanned(b"", 3, prioritized), bytes(wrong))
