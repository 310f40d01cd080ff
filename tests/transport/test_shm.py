"""What only the shm path does: it writes and reads the shard's own memory."""

from __future__ import annotations

import numpy as np
import pytest

from gear.transport.base import Wanted
from tests.transport.helpers import eventually, figures, insert, rows, table


def test_rows_arrive_in_the_segment_and_come_back_bit_exact(session, open_session, name):
    opened = session.create_table(table(name), 60.0)
    for number in range(20):
        insert(session, opened, number, length=1 + number % 10)
    reader = open_session()
    seen = reader.open_table(name, 60.0)
    assert seen.segment is not opened.segment
    selection = reader.select(seen, Wanted(256), 60.0)
    for start, length in zip(selection.starts, selection.lengths, strict=True):
        block, row = divmod(int(start), seen.layout.block_steps)
        values = rows(seen, block)[row : row + length]
        assert len(set(values.tolist())) == 1
        assert length == 1 + values[0] % 10
    assert set(np.diff(selection.ids)) != {0}
    assert selection.probabilities == pytest.approx(np.full(256, 1 / 20))
    reader.release(seen, selection, True)


def test_an_expired_pin_is_kept_while_it_is_being_read(session, open_session, name):
    opened = session.create_table(table(name), 60.0)
    insert(session, opened, 1)
    selection = session.select(opened, Wanted(1, 1, 0.05), 60.0)
    opened.reading.append(selection.pin)
    other = open_session()
    eventually(lambda: session.revoked(opened, selection), "the pin was revoked")
    assert figures(other, name)["pins"] == 1
    opened.reading.remove(selection.pin)
    session.release(opened, selection, False)
    eventually(lambda: figures(other, name)["pins"] == 0, "the pin ended")
