"""The words in which kernels on a GPU move memory: what the simulator may see executed, and PTX must have."""

from __future__ import annotations

WORDS = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "v4.u32"}
"""Types of PTX instructions by the bytes that they move."""

FOUR_AT_ONCE = (4, 8, 16)
"""Words of which a lane has four under way."""

EXECUTED = {*(("move", word) for word in WORDS), *(("move four", word) for word in FOUR_AT_ONCE)}
"""As the simulator notes them. What else it sees fails its suite; a test there sees each of these used."""
