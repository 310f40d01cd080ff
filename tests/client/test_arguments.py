"""Arguments that cannot be, in process and through a server: refused alike, before anything happens.

Origin of all: the wire refused them with a ProtocolError, or NumPy and the standard library with errors of theirs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gear
from gear.client.arguments import LONGEST, MOST_PARTIES, MOST_PREFETCH, seconds
from gear.query import MOST_ITEMS
from gear.transport import messages, wire

NAN, INF = math.nan, math.inf
TABLE = gear.Table(
    "replay", [gear.Column("obs", (3,))], gear.Steps(100), item=gear.Window(4), sampler=gear.Prioritized(0.6)
)
ROWS = {"obs": np.zeros((9, 3), np.float32)}


@pytest.fixture(scope="module", params=["inproc", "shm"])
def client(request: pytest.FixtureRequest) -> Iterator[gear.Client]:
    """A client over a table that holds one trajectory."""
    if request.param == "inproc":
        client = gear.embedded()
    else:
        client = gear.connect(request.getfixturevalue("server").address)
    with client:
        client.create_table(TABLE)
        client.insert(ROWS)
        yield client


def write(client: gear.Client, timeout: Any) -> None:
    with client.writer() as writer:
        writer.append({"obs": ROWS["obs"][0]})
        writer.end(timeout=timeout)


TIMED: dict[str, Callable[[gear.Client, Any], Any]] = {
    "create_table": lambda client, timeout: client.create_table(TABLE, timeout=timeout),
    "info": lambda client, timeout: client.info(timeout=timeout),
    "insert": lambda client, timeout: client.insert(ROWS, timeout=timeout),
    "insert without waiting": lambda client, timeout: client.insert(ROWS, wait=False, timeout=timeout),
    "insert_many": lambda client, timeout: client.insert_many([ROWS] * 20, timeout=timeout),
    "flush": lambda client, timeout: client.flush(timeout),
    "sample": lambda client, timeout: client.sample(4, timeout=timeout),
    "sample what must be gathered": lambda client, timeout: client.sample(30_000, timeout=timeout),
    "select": lambda client, timeout: client.release(client.select(4, timeout=timeout)),
    "update_priorities": lambda client, timeout: client.update_priorities([], [], timeout=timeout),
    "writer.end": write,
    "writer.publish": lambda client, timeout: client.writer().publish(timeout),
    "writer.flush": lambda client, timeout: client.writer().flush(timeout),
    "writer.close": lambda client, timeout: client.writer().close(timeout),
}


@pytest.mark.parametrize("timeout", [NAN, "1", True, [1.0]])
@pytest.mark.parametrize("verb", [*TIMED, "loader", "reset", "close"])
def test_a_timeout_that_is_no_number_is_refused(client, verb, timeout):
    others = {
        "loader": lambda client, timeout: client.loader(4, timeout=timeout),
        "reset": lambda client, timeout: client.reset(timeout=timeout),
        "close": lambda client, timeout: client.close(timeout),
    }
    with pytest.raises(gear.DataError, match="timeout: expected a number of seconds, or None to wait for ever, got"):
        (TIMED | others)[verb](client, timeout)


@pytest.mark.parametrize("timeout", [INF, 1e300, 10**400, 1e10])
@pytest.mark.parametrize("verb", TIMED)
def test_an_endless_timeout_waits_for_ever(client, verb, timeout):
    TIMED[verb](client, timeout)


@pytest.mark.parametrize("timeout", [INF, 1e10])
def test_a_loader_may_wait_for_ever(client, timeout):
    client.reset()
    with client.loader(4, timeout=timeout) as loader:
        client.insert(ROWS, wait=False)
        assert len(next(loader).ids) == 4


@pytest.mark.parametrize("timeout", [-1, -INF, -1e300, 0, np.float32(-2)])
def test_a_negative_timeout_does_not_wait(client, timeout):
    assert seconds(timeout) == 0.0
    for verb in ("select", "insert without waiting", "info"):
        TIMED[verb](client, 5.0 if verb == "info" else timeout)
    client.flush()


def test_connect_refuses_a_timeout_that_is_no_number():
    with pytest.raises(gear.DataError, match="timeout: expected a number of seconds"):
        gear.connect("127.0.0.1:1", timeout=NAN)


@pytest.mark.parametrize("size", [MOST_ITEMS + 1, 2**31, 2**70])
@pytest.mark.parametrize("verb", ["sample", "select", "loader"])
def test_a_batch_larger_than_the_wire_carries_is_refused(client, verb, size):
    with pytest.raises(gear.SchemaError, match=rf"size must be at most {MOST_ITEMS} items, got {size}; draw several"):
        getattr(client, verb)(size)


@pytest.mark.parametrize("ttl", [0, -1.0, NAN, INF, 1e10, "60", None, True])
def test_a_ttl_that_is_no_time_is_refused(client, ttl):
    with pytest.raises(gear.DataError, match=r"ttl: expected seconds above 0 and at most 1e\+09, got .*; say how long"):
        client.select(4, ttl=ttl)
    assert client.info()["tables"]["replay"]["pins"] == 0


@pytest.mark.parametrize("parties", [0, -1, True, 1.5, "2", None, NAN])
def test_parties_that_are_no_number_of_clients_are_refused(client, parties):
    with pytest.raises(gear.DataError, match="parties must be a whole number >= 1, got"):
        client.select(4, parties=parties)


@pytest.mark.parametrize("parties", [MOST_PARTIES + 1, 2**70])
def test_more_parties_than_the_wire_carries_are_refused(client, parties):
    with pytest.raises(gear.DataError, match=f"parties must be a whole number >= 1 and <= 65535, got {parties}"):
        client.select(4, parties=parties)


def test_the_largest_arguments_and_numpy_integers_are_taken(client):
    selection = client.select(np.int64(4), parties=np.int64(1), ttl=np.float32(LONGEST), timeout=np.int32(9))
    client.release(selection)
    assert client.select(4, parties=MOST_PARTIES, ttl=0.01).parties == MOST_PARTIES
    with client.loader(4, prefetch=np.int16(1)) as loader:
        next(loader)


@pytest.mark.parametrize("beta", [NAN, -0.1, -1e-300, 4.5, INF, 10**400, "1", True, [0.4]])
@pytest.mark.parametrize("verb", ["sample", "collect", "loader", "importance_weights"])
def test_a_beta_that_gives_no_weights_is_refused(client, verb, beta):
    selection = client.select(4)
    verbs: dict[str, Callable[[], Any]] = {
        "sample": lambda: client.sample(4, beta=beta),
        "collect": lambda: client.collect(selection, beta=beta),
        "loader": lambda: client.loader(4, beta=beta),
        "importance_weights": lambda: client.sample(4).importance_weights(beta),
    }
    with pytest.raises(gear.DataError, match=r"beta: expected a number in \[0, 4\], where 1 corrects fully, got"):
        verbs[verb]()
    client.release(selection)


def test_a_normalization_that_is_none_is_refused_by_the_call(client):
    with pytest.raises(gear.DataError, match="normalize: expected 'batch' or 'table', got 'sum'"):
        client.sample(4, normalize="sum")


@pytest.mark.parametrize("prefetch", [0, True, 1.5, "2", None])
def test_a_prefetch_that_is_no_number_of_batches_is_refused(client, prefetch):
    with pytest.raises(gear.DataError, match="prefetch must be a whole number >= 1, got"):
        client.loader(4, prefetch=prefetch)


@pytest.mark.parametrize("prefetch", [MOST_PREFETCH + 1, 10**12])
def test_more_prefetched_batches_than_make_sense_are_refused(client, prefetch):
    with pytest.raises(gear.DataError, match=f"prefetch must be a whole number >= 1 and <= 1024, got {prefetch}"):
        client.loader(4, prefetch=prefetch)


def test_more_ids_than_one_update_names_are_refused(client):
    ids = np.repeat(client.sample(1).ids, MOST_ITEMS + 1)
    with pytest.raises(gear.DataError, match=f"at most {MOST_ITEMS} in one update, got {len(ids)}; update them in"):
        client.update_priorities(ids, np.ones(len(ids)))
    assert client.update_priorities(ids[1:], np.ones(MOST_ITEMS)).applied == MOST_ITEMS


def test_the_limits_are_those_of_the_wire():
    assert MOST_ITEMS == messages.MAX_ITEMS
    body = messages.Select(0, MOST_ITEMS, MOST_PARTIES, LONGEST, LONGEST)
    envelope = messages.Envelope(messages.PROTOCOL, 1, 1, [], body)
    assert wire.decode_request([wire.encode(envelope)]).body == body


DAMAGED: dict[str, tuple[Callable[[gear.Selection], dict[str, Any]], str]] = {
    "a start below the rows": (lambda s: {"starts": s.starts - 1000}, r"starts\[0\] in \[0, \d+\], got -\d+"),
    "a start behind the rows": (lambda s: {"starts": s.starts + [0, 10**9, 0]}, r"starts\[1\] in \[0, \d+\], got 1000"),
    "a huge start": (lambda s: {"starts": s.starts | 2**62}, r"starts\[0\] in \[0, \d+\], got 46\d+"),
    "no rows": (lambda s: {"lengths": s.lengths * np.int32(0)}, r"lengths\[0\] in \[1, 4\], got 0"),
    "a negative length": (lambda s: {"lengths": -s.lengths}, r"lengths\[0\] in \[1, 4\], got -4"),
    "more rows than an item has": (
        lambda s: {"lengths": s.lengths + np.array([0, 0, 1], np.int32)}, r"lengths\[2\] in \[1, 4\], got 5",
    ),
    "fewer lengths": (lambda s: {"lengths": s.lengths[:2]}, "equally long ids.* got 3, 3, 3 and 2"),
    "fewer ids": (lambda s: {"ids": s.ids[:2]}, "equally long ids.* got 2, 3, 3 and 3"),
    "fewer probabilities": (lambda s: {"probabilities": s.probabilities[:1]}, "equally long ids.* got 3, 1, 3 and 3"),
    "starts of another type": (lambda s: {"starts": s.starts.astype(float)}, r"starts: int64\[3\], got float64\[3\]"),
    "lengths in a list": (lambda s: {"lengths": s.lengths.tolist()}, r"lengths: int32\[3\], got list"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_selection_is_refused_and_the_undamaged_one_still_comes(client, case):
    """Origin: such items came as padding or zeros, as if they were data."""
    damage, message = DAMAGED[case]
    client.reset()
    client.insert(ROWS)
    selection = client.select(3)
    with pytest.raises(gear.DataError, match=f"selection of table 'replay': expected {message}.*; collect it as"):
        client.collect(dataclasses.replace(selection, **damage(selection)))
    assert client.collect(selection).mask.all()
    client.release(selection)


def test_a_whole_trajectory_is_at_most_as_long_as_the_table_stores_them():
    table = gear.Table("t", [gear.Column("x")], gear.Steps(100), item=gear.Whole(), max_length=8)
    with gear.embedded([table]) as client:
        client.insert({"x": np.zeros(8, np.float32)})
        selection = client.select(1)
        with pytest.raises(gear.DataError, match=r"lengths\[0\] in \[1, 8\], got 9"):
            client.collect(dataclasses.replace(selection, lengths=selection.lengths + np.int32(1)))
        assert client.collect(selection)["x"].shape == (1, 8)


def test_one_table_may_be_embedded_without_a_list():
    table = gear.Table("alone", [gear.Column("x")], gear.Steps(8))
    with gear.embedded(table) as client:
        assert list(client.info()["tables"]) == ["alone"]


def test_a_table_that_is_not_there_is_named_with_its_neighbour_and_one_line_that_creates_it():
    """Origin: the line came twice, and "several tables or none exist" where their names were known."""
    table = gear.Table("replay", [gear.Column("x")], gear.Steps(8))
    with gear.embedded(table) as client:
        with pytest.raises(gear.TableNotFound, match="did you mean 'replay'") as missing:
            client.insert({"x": [1.0]}, "replya")
        assert str(missing.value).count("create_table") == 1
        assert str(missing.value).endswith("# columns: x float32")
        client.create_table(gear.Table("other", table.columns, table.capacity))
        with pytest.raises(
            gear.TableNotFound, match=r"several tables \(replay, other\): say which, as in table='replay'"
        ):
            client.sample(1)
