"""Messages about what outlives a server: checkpoints, and its end.

Each shard saves its part of a checkpoint under a token, then one of them completes the whole.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gear.transport.message import Message, Number, Seconds, Text

Token = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class Save(Message, tag=70):
    """Save this shard's part of a checkpoint."""

    token: Token


class Complete(Message, tag=71):
    """All shards have saved their parts under that token: make the checkpoint of them."""

    token: Token


class Unsave(Message, tag=72):
    """The checkpoint will not be completed: remove this shard's part."""

    token: Token


class AskSaving(Message, tag=73):
    """How far has the save come that is under way?"""


class Saved(Message, tag=170):
    """The part is on the disk: its bytes, those of them that are new, trajectories in it and left out, seconds."""

    nbytes: Number
    written: Number
    trajectories: Number
    left_out: Number
    seconds: Seconds


class Completed(Message, tag=171):
    """The checkpoint is complete."""

    path: Text
    nbytes: Number
    written: Number


class Saving(Message, tag=173):
    """Bytes of the save under way that are done, and all of them; 0 of 0 while none is."""

    done: Number
    total: Number


class Ending(Message, tag=174):
    """Pushed: the shard serves nobody any more. `kept`: what it holds waits for the one that takes its place."""

    kept: bool
