"""The limiter of a table on several shards: what its home promises and lends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gear
from gear.storage import fields as f
from gear.storage.ledger import Account, Ledger


def ledger(limiter, others: int = 1) -> tuple[Ledger, np.ndarray]:
    counters = np.zeros(f.COUNTERS, np.int64)
    table = gear.Table("t", [gear.Column("x")], gear.Steps(100), limiter=limiter)
    made = Ledger(table, counters, 0)
    for shard in range(1, 1 + others):
        made.accounts[shard] = Account()
    return made, counters


def spend(account, items: int = 1) -> None:
    account.inserted += items
    account.credit -= items


def test_reverbs_case_over_two_shards():
    """Samples per insert 1.5, min size 2, differences in [0, 5]: 3 inserts pass, 2 samples admit one more."""
    book, _ = ledger(gear.SampleToInsertRatio(1.5, 2, (0.0, 5.0)))
    other = book.accounts[1]
    other.want = 10
    assert book.lend() == {1: 3}
    assert book.promise(4) == 0  # lent is not inserted yet
    for _ in range(3):
        spend(other)
    assert book.lend() == {}
    assert book.promise(2) == 2
    assert book.lend() == {1: 1}
    assert book.lend() == {}


def test_what_is_lent_and_not_used_counts_as_inserted_for_other_inserts_and_not_for_samples():
    book, counters = ledger(gear.SampleToInsertRatio(1.0, 1, (0.0, 4.0)))
    book.accounts[1].want = 4
    assert book.lend() == {1: 4}
    book.accounts[0].want = 1
    assert book.lend() == {}
    assert book.idle() == [1]
    book.accounts[1].credit = 0  # called back
    assert book.lend() == {0: 1}
    assert counters[f.INSERT_CREDIT] == 1
    assert book.promise(1) == 0


def test_shards_that_wait_get_their_turns():
    book, counters = ledger(gear.SampleToInsertRatio(1.0, 1, (0.0, 3.0)), others=2)
    for account in book.accounts.values():
        account.want = 9
    got: dict[int, int] = dict.fromkeys(book.accounts, 0)
    for _ in range(30):
        for shard, amount in book.lend().items():
            got[shard] += amount
            if shard:
                spend(book.accounts[shard], amount)
            else:
                counters[f.INSERTED_ITEMS] += amount
                counters[f.INSERT_CREDIT] -= amount
            book.accounts[shard].want = 9
        book.promise(1)
    assert max(got.values()) - min(got.values()) <= 1
    assert sum(got.values()) > 25


def test_a_shard_that_wants_without_end_holds_nobody_up():
    """Origin: what was lent was counted out one by one: a want of billions kept the home from serving for minutes."""
    book, _ = ledger(gear.SampleToInsertRatio(1.0, 1, (0.0, 1e12)), others=2)
    first, second, third = book.accounts
    book.accounts[first].want, book.accounts[second].want, book.accounts[third].want = 2, 2**62, 2**62
    lent = book.lend()
    assert lent[first] == 2
    assert sum(lent.values()) == 1 << 31
    assert abs(lent[second] - lent[third]) <= 1


def test_min_size_counts_the_items_of_all_shards():
    book, _ = ledger(gear.MinSize(3))
    book.accounts[1].inserted = 2
    assert book.promise(5) == 0
    book.accounts[1].inserted = 3
    assert book.promise(5) == 5
    book.accounts[1].deleted = 1
    assert book.promise(5) == 0


def test_a_dead_shard_stays_inserted_holds_no_items_and_owes_nothing():
    book, _ = ledger(gear.SampleToInsertRatio(1.0, 1, (0.0, 4.0)))
    other = book.accounts[1]
    other.want = 4
    book.lend()
    spend(other)
    book.bury(1)
    assert book.items == 0
    assert (other.inserted, other.credit, other.want) == (1, 0, 0)
    book.accounts[0].want = 9
    assert book.lend() == {0: 3}


@settings(max_examples=200)
@given(
    spi=st.floats(0.25, 4.0),
    least=st.integers(1, 5),
    slack=st.floats(0.0, 20.0),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 5)), max_size=60),
)
def test_neither_bound_is_ever_passed_and_somebody_can_always_go_on(spi, least, slack, steps):
    error = max(1.0, spi) + slack  # no less is accepted
    limiter = gear.SampleToInsertRatio(spi, least, error)
    low, high = limiter.bounds
    book, counters = ledger(limiter, others=2)

    def inserted() -> int:
        return sum(account.inserted for account in book.accounts.values())

    for what, shard, amount in steps:
        account = book.accounts[shard]
        if what == 0:
            account.want = amount
            book.lend()
        elif what == 1 and account.credit > 0:
            counters[f.INSERT_CREDIT] -= shard == 0
            counters[f.INSERTED_ITEMS] += shard == 0
            if shard:
                spend(account)
        elif what == 2:
            book.promise(amount)
        elif shard:
            account.credit = 0
        else:
            counters[f.INSERT_CREDIT] = 0
        lent = sum(max(0, one.credit) for one in book.accounts.values())
        sampled = int(counters[f.CREDITED])
        if sampled:
            assert spi * inserted() - sampled >= low - 1e-6
        if inserted() + lent > least:
            assert spi * (inserted() + lent) - sampled <= high + 1e-6
    for account in list(book.accounts.values())[1:]:
        account.credit = account.want = 0
    counters[f.INSERT_CREDIT] = 0
    book.accounts[1].want = 1
    assert book.promise(1) or book.lend()


def test_no_insert_is_ever_held_back_by_a_least_size():
    book, _ = ledger(gear.MinSize(3))
    book.accounts[1].want = 5
    assert book.lend() == {}
    assert book.idle() == []


@pytest.mark.parametrize("ratio", [1 / 3, 0.1])
def test_fractions_do_not_lose_a_sample_to_rounding(ratio):
    book, _ = ledger(gear.SampleToInsertRatio(ratio, 1, (0.0, 100.0)))
    book.accounts[1].inserted = 30
    assert book.promise(100) == round(30 * ratio)


def test_items_beyond_a_least_size_may_leave_without_a_word_and_never_too_many():
    """Shards that were told how far they may go down leave at least as many as are needed, all together."""
    book, counters = ledger(gear.MinSize(10), others=2)
    counters[f.INSERTED_ITEMS] = 20
    book.accounts[1].inserted = book.accounts[2].inserted = 20
    floors = [20, book.relax(1), book.relax(2)]
    assert floors == [20, 20 - 50 // 3, 20 - (50 - 50 // 3) // 3]
    assert sum(floors) >= 10
    assert book.promise(1) == 1
    counters[f.DELETED_ITEMS] = 18  # the others may all be at their floors now: 4 + 9 + 2 are enough
    assert book.promise(1) == 1
    assert book.in_doubt() == []
    counters[f.DELETED_ITEMS] = 20
    book.accounts[1].deleted = 16
    book.relax(1)
    assert book.in_doubt() == []
    book.accounts[1].deleted = 20
    book.relax(1)
    assert book.promise(1) == 0
    assert book.in_doubt() == [2]
    book.accounts[2].deleted = 5
    assert book.relax(2) == 15 - 5 // 3
    assert book.promise(1) == 1
