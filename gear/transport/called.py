"""What the user called when a message went unanswered: errors name the verb of the client, not the message."""

from __future__ import annotations

_VERBS = {
    "acknowledge": "ack",
    "allocate": "insert",
    "begin": "open",
    "collect": "collect",
    "commit": "insert",
    "createtable": "create_table",
    "credit": "sample",
    "draw": "sample",
    "identify": "insert_many",
    "install": "publish",
    "lease": "insert",
    "opentable": "opening the table",
    "pick": "select",
    "select": "sample",
    "setversion": "set_version",
    "store": "publish",
    "update": "update_priorities",
    "withdraw": "insert",
}


def verb(message: str) -> str:
    """The client's verb behind a message, given by its lower-case name; a name that has none as it is."""
    return _VERBS.get(message, message)
