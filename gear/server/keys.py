"""CURVE keys of a server, and which clients may come: ``gear keys new``, and what answers ZeroMQ's question about each.

A directory of keys holds `server.key` (0600, read by the server's processes and by nobody else), `server.pub`,
`client.key` (0600) and in `clients/` the public keys of those that may connect. They are looked up at each
connection: a file that is put there or taken away counts from the next one on.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from pathlib import Path

import zmq
from zmq.utils import z85

from gear.errors import AuthenticationError
from gear.transport.keys import CLIENT_KEY, SERVER_PUBLIC, ClientKeys, KeyPair, need_curve, read_pair, read_public
from gear.transport.private import write_private

logger = logging.getLogger(__name__)

SERVER_KEY = "server.key"
ALLOWED = "clients"
_ZAP = "inproc://zeromq.zap.01"
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


def new_pair() -> KeyPair:
    """A pair that nobody else has."""
    need_curve()
    return KeyPair(*zmq.curve_keypair())


def _text(pair: KeyPair, whose: str, secret: bool) -> str:
    lines = [f"# GEAR: {'secret' if secret else 'public'} CURVE key of a {whose}", "metadata", "curve"]
    lines.append(f'    public-key = "{pair.public.decode()}"')
    if secret:
        lines.append(f'    secret-key = "{pair.secret.decode()}"')
    return "\n".join(lines) + "\n"


def make_keys(directory: Path) -> None:
    """Make the keys of a server, and of a first client.

    Raises
    ------
    AuthenticationError
        If there are keys already, or the directory cannot be written.
    """
    server = new_pair()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(directory / SERVER_KEY, _text(server, "server", True))
        (directory / ALLOWED).mkdir(mode=0o700, exist_ok=True)
        (directory / SERVER_PUBLIC).write_text(_text(server, "server", False))
        _make_client(directory, directory, "first")
    except FileExistsError as error:
        raise AuthenticationError(
            f"{error.filename} is there already: keys are never written over; name another directory, or add a client "
            f"with gear keys client {directory} NEW_DIR"
        ) from None
    except OSError as error:
        raise AuthenticationError(f"cannot make keys in {directory}: {error.strerror}") from None


def make_client(directory: Path, to: Path) -> None:
    """Make the keys of one more client in a directory of its own, `to`, whose name it is known by.

    Raises
    ------
    AuthenticationError
        If there are no keys of a server, or one of that name or in that directory.
    """
    name = to.resolve().name
    if not _NAME.fullmatch(name):
        raise AuthenticationError(f"expected a directory name of 1 to 64 letters, digits or '_.-', got {name!r}")
    server = read_public(directory / SERVER_PUBLIC, "keys of the server")
    try:
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
        (to / SERVER_PUBLIC).write_text(_text(KeyPair(server, b""), "server", False))
        _make_client(directory, to, name)
    except FileExistsError as error:
        raise AuthenticationError(f"{error.filename} is there already: keys are never written over") from None
    except OSError as error:
        raise AuthenticationError(f"cannot make keys in {to}: {error.strerror}") from None


def _make_client(directory: Path, to: Path, name: str) -> None:
    pair = new_pair()
    write_private(directory / ALLOWED / f"{name}.pub", _text(pair, "client", False))
    write_private(to / CLIENT_KEY, _text(pair, "client", True))


class ServerKeys:
    """The keys that a server serves with.

    Parameters
    ----------
    directory : str
        Of ``--curve-keys``.
    pair : (str, str), optional
        Public and secret key that were read there when the server started, see `pair`.

    Raises
    ------
    AuthenticationError
        If they cannot be used.
    """

    def __init__(self, directory: str, pair: tuple[str, str] | None = None) -> None:
        need_curve()
        self.directory, what = Path(directory).resolve(), "--curve-keys"
        self._pair = read_pair(self.directory / SERVER_KEY, what) if pair is None else KeyPair(*map(str.encode, pair))
        own = new_pair()  # for what the server itself asks over its public port
        self.own = ClientKeys(own, self._pair.public)
        if pair is not None:  # nobody is allowed while there is no such directory
            return
        try:
            os.listdir(self.directory / ALLOWED)
        except OSError as error:
            raise AuthenticationError(
                f"{what} {self.directory / ALLOWED}: {error.strerror}; make a directory with gear keys new"
            ) from None

    @property
    def public(self) -> str:
        """The server's public key, as `server.pub` has it."""
        return self.own.server.decode()

    @property
    def pair(self) -> tuple[str, str]:
        """Public and secret key, for another process of the same server."""
        return self._pair.public.decode(), self._pair.secret.decode()

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Have what a socket binds to from now on want these keys."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._pair.secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, b"gear")
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # else ZeroMQ lets everybody in while nobody answers its question

    def allows(self, public: bytes) -> bool:
        """Whether a client with that public key (Z85) may come."""
        if public == self.own.pair.public:
            return True
        try:
            return any(_is(path, public) for path in (self.directory / ALLOWED).glob("*.pub"))
        except OSError:
            return False


def _is(path: Path, public: bytes) -> bool:
    try:
        return read_public(path, "clients") == public
    except AuthenticationError as error:
        logger.warning("%s", error)
        return False


class Gate:
    """Tells ZeroMQ which clients may connect (ZAP, RFC 27), in a thread that ends with the context.

    Parameters
    ----------
    context : zmq.Context
        Whose sockets it is asked about.
    keys : ServerKeys
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: ServerKeys) -> None:
        self._keys = keys
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP)
        threading.Thread(target=self._run, name="gate", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                asked = self._socket.recv_multipart()
                try:
                    answer = self._answer(asked)
                except Exception:  # a bug of ours must not end the thread
                    logger.exception("whether a client may connect could not be found out")
                    answer = [*asked[:2], b"500", b"internal error", b"", b""]
                self._socket.send_multipart(answer)
        except zmq.ZMQError:  # the context ends
            pass
        finally:
            self._socket.close(0)

    def _answer(self, asked: list[bytes]) -> list[bytes]:
        """ZeroMQ itself asks, so the frames are as its specification says."""
        version, number, _, address, _, mechanism, *credentials = asked
        if mechanism == b"CURVE" and credentials and self._keys.allows(z85.encode(credentials[0])):
            return [version, number, b"200", b"OK", b"", b""]
        logger.info("refused a connection from %s: its key is not among those in %s", address.decode(), ALLOWED)
        return [version, number, b"400", b"the key is not allowed", b"", b""]
