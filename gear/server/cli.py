"""The command lines `gear-server` and `gear`: options in, one line out. The only place that prints."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import gear
from gear.errors import AuthenticationError, DeviceError, GearError, InsufficientMemory, SchemaError
from gear.transport.discovery import DEFAULT_PORT

_WRONG_OPTIONS = (DeviceError, AuthenticationError, SchemaError, InsufficientMemory)
_LEVELS = ("debug", "info", "warning", "error")


def _print(text: str, stream: Any = None) -> None:
    print(text, file=stream or sys.stdout, flush=True)


def _checked(check: Any) -> Any:
    """An argparse type whose ValueError is shown as it is."""

    def convert(text: str) -> Any:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise ValueError(f"expected a port from 0 (any free one) to 65535, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 86400:
        raise ValueError(f"expected 0.05 to 86400 seconds, got {text!r}")
    return value


def _period(text: str) -> float:
    from gear.server.config import parse_period

    return parse_period(text)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"expected a number from 1 on, got {text!r}")
    return int(text)


def _server_parser() -> argparse.ArgumentParser:
    from gear.server.config import check_name, parse_size

    parser = argparse.ArgumentParser(
        "gear-server", description="Serve experience replay tables on this host.", allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--devices",
        default="cpu",
        help="what serves the tables: 'cpu' (default), 'cpu:N' for N shards, or GPUs, a shard for each: numbers like "
        "'0,1' among those that CUDA_VISIBLE_DEVICES leaves, UUIDs, or 'cuda' for all of them",
    )
    add(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default 127.0.0.1); a token and keys are required unless it is loopback",
    )
    add(
        "--port",
        type=_checked(_port),
        default=DEFAULT_PORT,
        help=f"public port, 0 for any free one (default {DEFAULT_PORT})",
    )
    add("--name", type=_checked(check_name), default=None, help="name of the server on this host (default gear-PORT)")
    add(
        "--memory",
        type=_checked(parse_size),
        default=None,
        help="most that all tables may take, such as 8GiB (default 80%% of /dev/shm)",
    )
    add(
        "--device-memory", type=_checked(parse_size), default=None, metavar="SIZE",
        help="most that tables may take on each GPU (default 80 %% of what it has)",
    )  # fmt: skip
    add("--tables", default=None, metavar="FILE", help="TOML file of tables to create, see docs/tables.md")
    add(
        "--metrics-port", type=_checked(_port), default=None, help="serve Prometheus metrics there, 0 for any free port"
    )
    add("--token-file", default=None, help="file with the token that clients must give, of mode 0600")
    add("--curve-keys", default=None, metavar="DIR", help="encrypt with the keys in DIR, made by `gear keys new DIR`")
    add("--log-level", choices=_LEVELS, default="info", help="least that is logged (default info)")
    add(
        "--discard",
        action="store_true",
        help="remove tables kept by an earlier server instead of taking them up, and our own at the end",
    )
    add(
        "--client-timeout",
        type=_checked(_seconds),
        default=10.0,
        help="seconds until a silent client is lost (default 10)",
    )
    add(
        "--max-restarts", type=int, default=5, metavar="N",
        help="how often in a minute a shard that died is started again (default 5, 0: never)",
    )  # fmt: skip
    add(
        "--checkpoint",
        default="",
        metavar="DIR",
        help="keep checkpoints there; one is saved at the end too (default: none)",
    )
    add(
        "--checkpoint-every", type=_checked(_period), default=0.0, metavar="PERIOD",
        help="save one every so often, such as 30s, 5m or 2h (default: when a client asks)",
    )  # fmt: skip
    add("--keep", type=_checked(_count), default=0, metavar="N", help="keep the N newest checkpoints (default: all)")
    add(
        "--restore", default="", metavar="latest|PATH",
        help="begin with a checkpoint: the newest complete one in --checkpoint DIR, or that one (default: empty)",
    )  # fmt: skip
    add(
        "--restore-to-host", action="store_true",
        help="have columns that were saved on a GPU on the host from now on (default: on a GPU again)",
    )  # fmt: skip
    add("--version", action="version", version=f"gear-server {gear.__version__}")
    return parser


def server_main(arguments: Sequence[str] | None = None) -> int:
    """`gear-server`. Exit codes: 0 stopped by a signal, 1 could not start or lost a shard, 2 wrong options."""
    from gear.server import config
    from gear.server.budget import check_memory
    from gear.server.declared import read_tables
    from gear.server.supervisor import Supervisor

    parsed = _server_parser().parse_args(arguments)
    logging.basicConfig(
        level=parsed.log_level.upper(), format="%(asctime)s gear-server %(levelname)s %(name)s: %(message)s"
    )
    try:
        host, devices = config.resolve(parsed.host), config.check_devices(parsed.devices)
        memory = config.default_memory() if parsed.memory is None else check_memory(parsed.memory)
        gpus, device_memory = config.gpus_of(devices, parsed.device_memory)
        options = config.Options(
            name=parsed.name or "",
            host=host,
            port=parsed.port,
            devices=devices,
            memory=memory,
            token=config.read_token(parsed.token_file, host),
            log_level=parsed.log_level,
            discard=parsed.discard,
            client_timeout=parsed.client_timeout,
            tables=()
            if parsed.tables is None
            else tuple(read_tables(parsed.tables, memory, config.shard_count(devices), device_memory)),
            metrics_port=parsed.metrics_port,
            max_restarts=parsed.max_restarts,
            curve_keys=config.read_keys(parsed.curve_keys, host),
            gpus=gpus,
            device_memory=device_memory,
            **config.check_checkpoints(
                parsed.checkpoint, parsed.checkpoint_every, parsed.keep, parsed.restore, parsed.restore_to_host
            ),
        )
    except GearError as error:
        _print(f"gear-server: error: {error}", sys.stderr)
        return 2 if isinstance(error, _WRONG_OPTIONS) else 1
    try:
        return Supervisor(options, _print).run()
    except GearError as error:
        _print(f"gear-server: error: {error}", sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    from gear.server import ask, checkpoints, keys_command, top

    parser = argparse.ArgumentParser("gear", description="Ask a GEAR server.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"gear {gear.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    checkpoints.add_commands(commands)
    for name, text, add, run in (
        ("info", "figures of a server and of its tables", ask.add_info_arguments, ask.info),
        ("tables", "the tables of a server as TOML that gear-server --tables takes", None, ask.tables),
        ("top", "what a server does, live: rates, waits and latencies", top.add_arguments, top.run),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("address", help=f"HOST:PORT (default port {DEFAULT_PORT})")
        command.add_argument("--token-file", default=None, help="file with the server's token (default: GEAR_TOKEN)")
        command.add_argument(
            "--curve-keys",
            default=None,
            metavar="DIR",
            help="directory of the client's keys (default: GEAR_CURVE_KEYS)",
        )
        command.add_argument(
            "--timeout", type=_checked(_seconds), default=10.0, help="seconds to wait for an answer (default 10)"
        )
        if add is not None:
            add(command)
        command.set_defaults(run=run)
    keys_command.add(commands)
    text = "the GPUs that a server or a learner here would see, and which doors to them work"
    commands.add_parser("devices", help=text, description=text)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """`gear`: ask a running server, look at checkpoints."""
    parsed = _parser().parse_args(arguments)
    try:
        return _answer(parsed)
    except BrokenPipeError:  # `gear info ... | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer goes nowhere
        return 128 + signal.SIGPIPE


def _answer(parsed: argparse.Namespace) -> int:
    from gear.server.config import token_of
    from gear.transport.keys import client_keys

    if parsed.command == "devices":
        from gear.devices.report import report

        _print(report())
        return 0
    try:
        if parsed.command == "keys":
            _print(parsed.run(parsed))
            return 0
        parsed.keys = client_keys(getattr(parsed, "curve_keys", None))
        file = getattr(parsed, "token_file", None)
        token = os.environ.get("GEAR_TOKEN", "") if file is None else token_of(file)
        outcome = parsed.run(parsed, token)
    except BrokenPipeError:
        raise
    except (GearError, OSError) as error:
        _print(f"gear: error: {error}", sys.stderr)
        return 1
    if isinstance(outcome, str):
        _print(outcome)
        return 0
    return int(outcome)
