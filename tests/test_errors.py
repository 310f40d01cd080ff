"""The exceptions: one tree, each also the built-in that a caller would catch, all known by name."""

from __future__ import annotations

import inspect

import pytest

from gear import errors


def _classes() -> list[type[errors.GearError]]:
    return [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.GearError)]


def test_every_exception_derives_from_gear_error_and_travels_by_its_name():
    assert {c.__name__: c for c in _classes()} == errors.by_name


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        (errors.SchemaError, ValueError),
        (errors.DataError, ValueError),
        (errors.TableNotFound, KeyError),
        (errors.TableMismatch, ValueError),
        (errors.DeadlineExceeded, TimeoutError),
        (errors.ConnectionLost, ConnectionError),
        (errors.ProtocolError, ConnectionError),
        (errors.AuthenticationError, PermissionError),
        (errors.InsufficientMemory, MemoryError),
        (errors.CheckpointError, OSError),
        (errors.DeviceError, RuntimeError),
        (errors.PinLost, RuntimeError),
        (errors.ServerConflict, OSError),
        (errors.Closed, RuntimeError),
    ],
)
def test_each_is_caught_as_the_built_in_a_caller_expects(ours, builtin):
    with pytest.raises(builtin):
        raise ours("message")


@pytest.mark.parametrize("kind", _classes(), ids=lambda c: c.__name__)
def test_the_text_is_the_message_and_nothing_else(kind):
    message = "expected 'a', got 'b'"
    assert str(kind(message)) == message


def test_a_missing_table_without_a_message_prints_nothing():
    assert str(errors.TableNotFound()) == ""
