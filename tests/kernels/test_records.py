"""The records that kernels read and the layout that places them mean the same bytes."""

from __future__ import annotations

import pytest

from gear.kernels import records
from gear.storage import fields as layout


@pytest.mark.parametrize("name", ["FAN", "BLOCK_FIELDS", "GENERATION", "SLOT", "ORDINAL", "NEXT", "PREVIOUS", "OWNER"])
def test_layout_and_kernels_agree(name):
    assert getattr(layout, name) == getattr(records, name)


def test_fields_are_distinct_and_fit():
    block = [records.GENERATION, records.SLOT, records.ORDINAL, records.NEXT, records.PREVIOUS, records.OWNER]
    assert sorted(block) == list(range(records.BLOCK_FIELDS))
    assert max(records.MASK, records.PAD) < records.PLAN_FIELDS
