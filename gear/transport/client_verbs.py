"""The client's verb behind a message: what a user called, which errors name when there is no answer."""

from __future__ import annotations

from gear.transport import messages as m

_VERBS: dict[type[m.Message], str] = {
    m.Acknowledge: "ack",
    m.Allocate: "insert",
    m.Attach: "connect",
    m.Begin: "open",
    m.CreateTable: "create_table",
    m.Hold: "collect",
    m.Identify: "insert_many",
    m.Install: "publish",
    m.Lease: "insert",
    m.Locate: "collect",
    m.OpenTable: "opening the table",
    m.Pick: "select",
    m.Select: "sample",
    m.SetVersion: "set_version",
    m.Update: "update_priorities",
    m.Withdraw: "insert",
}


def verb(body: m.Message) -> str:
    """The verb; of most messages their own name."""
    return _VERBS.get(type(body)) or type(body).__name__.lower()
