"""A queue pair: one end of a reliable connection over which rows are read and written, and windows are bound.

Any failed completion ends it for good: whoever owns it makes another one. Memory that its requests may still write to
must not be used for anything else before they completed or the pair is destroyed (`close`). pyverbs holds the
interpreter's lock in each of its calls, so that completions are polled for in short bursts.

Thread-safe, one request or chain of them at a time; `close` ends the wait of whoever is at it.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from gear.errors import ConnectionLost, DeviceError
from gear.transport.rdma_chains import MOST, chains
from gear.transport.rdma_device import PORT
from gear.transport.rdma_verbs import verbs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gear.transport.rdma_chains import Transfer
    from gear.transport.rdma_device import Device

FLYING = 2
"""Chains that are under way at a time."""

TIMEOUT, RETRIES = 17, 4
"""A packet is sent again after 4.096 us * 2**TIMEOUT, so often: a dead peer shows after 3 to 12 s."""

PATIENCE = 60.0
"""Seconds after which a completion that has not come counts as failed."""

_BURST, _NAPS = 64, (20e-6, 1e-3)
"""Polls before the first nap; shortest and longest nap in seconds."""

_HOPS, _NOT_READY, _RNR_RETRIES = 64, 12, 6


class Broken(ConnectionLost):
    """A request over a queue pair failed; the pair is of no use any more."""


class End(NamedTuple):
    """What the other end has to know of a queue pair."""

    number: int
    sequence: int
    gid: str
    lid: int
    mtu: int


class Key(NamedTuple):
    """Where the other end's memory begins, and the key for it."""

    address: int
    key: int


class QueuePair:
    """A queue pair of this process's device; `connect` makes it usable.

    Parameters
    ----------
    device : Device
    receives : int
        Writes with an immediate that may come before one of them is looked at.
    """

    def __init__(self, device: Device, receives: int = 1) -> None:
        v = verbs()
        e = v.enums
        self._device, self._flying, self._number = device, 0, 0
        self._lock = threading.RLock()
        operations = (
            e.IBV_QP_EX_WITH_RDMA_READ
            | e.IBV_QP_EX_WITH_RDMA_WRITE
            | e.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | e.IBV_QP_EX_WITH_BIND_MW
            | e.IBV_QP_EX_WITH_LOCAL_INV
        )
        depth = FLYING * (MOST + 1)
        try:
            self._completions = v.CQ(device.context, 2 * depth)
            cap = v.QPCap(max_send_wr=depth, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
            made = v.QPInitAttrEx(
                qp_type=e.IBV_QPT_RC, scq=self._completions, rcq=self._completions, cap=cap, pd=device.domain,
                sq_sig_all=0, comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                send_ops_flags=operations,
            )  # fmt: skip
            self._pair: Any = v.QPEx(device.context, made)
        except v.PyverbsError as error:
            raise DeviceError(f"RDMA device {device.name} makes no queue pair: {error}") from None
        self.end = End(self._pair.qp_num, secrets.randbits(24), device.gid, device.lid, device.mtu)
        self.broken = ""
        """Why it is of no use any more; empty while it is."""

    def connect(self, other: End, access: int) -> None:
        """Connect to the other end, which may do to this one's registered memory what `access` allows.

        Raises
        ------
        DeviceError
            If the device refuses.
        """
        v = verbs()
        try:
            attributes = v.QPAttr(port_num=PORT)
            attributes.qp_access_flags = access
            self._pair.to_init(attributes)
            route = v.GlobalRoute(dgid=v.GID(other.gid), sgid_index=self._device.gid_index, hop_limit=_HOPS)
            attributes = v.QPAttr(port_num=PORT)
            attributes.ah_attr = v.AHAttr(gr=route, is_global=1, port_num=PORT, dlid=other.lid)
            attributes.path_mtu = min(self._device.mtu, other.mtu)
            attributes.dest_qp_num, attributes.rq_psn = other.number, other.sequence
            attributes.max_dest_rd_atomic, attributes.min_rnr_timer = self._device.reads, _NOT_READY
            self._pair.to_rtr(attributes)
            attributes.sq_psn, attributes.max_rd_atomic = self.end.sequence, self._device.reads
            attributes.retry_cnt, attributes.rnr_retry, attributes.timeout = RETRIES, _RNR_RETRIES, TIMEOUT
            self._pair.to_rts(attributes)
        except v.PyverbsError as error:
            raise DeviceError(f"queue pair {other.number} at {other.gid} cannot be reached: {error}") from None

    # Bulk

    def read(self, transfers: Sequence[Transfer], near: tuple[int, int], far: Key) -> None:
        """Bring rows from the other end and wait until they are there.

        near: address and local key of this end's memory.

        Raises
        ------
        Broken
        """
        self._move(transfers, near, far, "wr_rdma_read")

    def write(self, transfers: Sequence[Transfer], near: tuple[int, int], far: Key) -> None:
        """Bring rows to the other end and wait until they are there; see `read`."""
        self._move(transfers, near, far, "wr_rdma_write")

    def _move(self, transfers: Sequence[Transfer], near: tuple[int, int], far: Key, verb: str) -> None:
        v = verbs()
        address, local = near
        with self._lock:
            for chain in chains(transfers):
                if self._flying == FLYING:
                    self._complete(1)
                last = len(chain) - 1

                def fill(pair: Any, chain: Sequence[Transfer] = chain, last: int = last) -> None:
                    ask = getattr(pair, verb)
                    for k, one in enumerate(chain):
                        pair.wr_flags = v.enums.IBV_SEND_SIGNALED if k == last else 0
                        ask(far.key, far.address + one.far)
                        pair.wr_set_sge(v.SGE(address + one.near, one.nbytes, local))

                self._post(fill)
            self._complete(self._flying)

    def send(self, transfers: Sequence[Transfer], near: tuple[int, int], far: Key, immediate: int) -> None:
        """Write one chain, the last with an immediate, and do not wait; `reap` tells when it is there.

        Raises
        ------
        Broken
            Also if too many chains are under way.
        """
        v = verbs()
        address, local = near
        last = len(transfers) - 1

        def fill(pair: Any) -> None:
            for k, one in enumerate(transfers):
                pair.wr_flags = v.enums.IBV_SEND_SIGNALED if k == last else 0
                if k == last:
                    # pyverbs takes it as it travels, and gives it in the order of the host
                    pair.wr_rdma_write_imm(far.key, far.address + one.far, socket.htonl(immediate))
                else:
                    pair.wr_rdma_write(far.key, far.address + one.far)
                pair.wr_set_sge(v.SGE(address + one.near, one.nbytes, local))

        with self._lock:
            self._post(fill)

    def reap(self) -> int:
        """How many chains have completed since this was asked; at once.

        Raises
        ------
        Broken
        """
        with self._lock:
            return len(self._poll(FLYING * (MOST + 1)))

    # Windows

    def bind(self, bindings: Sequence[tuple[Any, int, Any]]) -> None:
        """Bind windows (window, key, what it shows) and wait until all are.

        Raises
        ------
        Broken
        """
        self._each(bindings, lambda pair, one: pair.wr_bind_mw(*one))

    def invalidate(self, keys: Sequence[int]) -> None:
        """End the access that bound windows give, and wait until it has ended.

        Raises
        ------
        Broken
        """
        self._each(keys, lambda pair, key: pair.wr_local_inv(key))

    def _each(self, ones: Sequence[Any], verb: Callable[[Any, Any], None]) -> None:
        signaled = verbs().enums.IBV_SEND_SIGNALED
        with self._lock:
            for at in range(0, len(ones), MOST):
                part = ones[at : at + MOST]

                def fill(pair: Any, part: Sequence[Any] = part) -> None:
                    for k, one in enumerate(part):
                        pair.wr_flags = signaled if k == len(part) - 1 else 0
                        verb(pair, one)

                self._post(fill)
                self._complete(self._flying)

    # Requests and completions

    def _post(self, fill: Callable[[Any], None]) -> None:
        v, pair = verbs(), self._pair
        if self.broken:
            raise Broken(self.broken)
        try:
            pair.wr_start()
            pair.wr_id = self._number
            fill(pair)
            pair.wr_complete()
        except v.PyverbsError as error:
            raise self._break(f"a request was refused: {error}") from None
        self._number += 1
        self._flying += 1

    def _complete(self, count: int) -> None:
        """Wait for that many chains; they complete in order."""
        deadline, polls, nap = time.monotonic() + PATIENCE, 0, _NAPS[0]
        while count:
            done = len(self._poll(count))
            if done:
                count, polls = count - done, 0
                continue
            polls += 1
            if polls > _BURST:
                if time.monotonic() > deadline:
                    raise self._break(f"a request did not complete within {PATIENCE:g} s")
                time.sleep(nap)  # nothing wakes us: pyverbs offers no descriptor to wait on
                nap = min(2 * nap, _NAPS[1])

    def _poll(self, count: int) -> list[Any]:
        """Up to that many completions that have come, all of them good."""
        v = verbs()
        if self.broken:  # maybe closed by another thread
            raise self._break(self.broken)
        try:
            done, completions = self._completions.poll(count)
        except v.PyverbsError as error:
            raise self._break(f"completions cannot be polled for: {error}") from None
        for completion in completions:
            if completion.status != v.enums.IBV_WC_SUCCESS:
                raise self._break(f"a request failed with status {completion.status}")
        self._flying -= done
        return list(completions)

    def _break(self, why: str) -> Broken:
        """The pair is over: it is destroyed, so that nothing is written any more."""
        self.broken = self.broken or why
        self.close()
        return Broken(self.broken)

    def close(self) -> None:
        """Destroy the pair: when this returns, neither end touches memory through it any more."""
        self.broken = self.broken or "it is closed"
        with self._lock:
            pair, self._pair = self._pair, None
            if pair is not None:
                with contextlib.suppress(Exception):  # the device may be gone
                    pair.close()
                with contextlib.suppress(Exception):
                    self._completions.close()
