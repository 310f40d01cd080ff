"""Host memory of a table: a named shared segment, or anonymous memory for an embedded table.

Sizes are checked against every limit that is known before a page is touched, because a segment that
outgrows its filesystem or memory limit ends in SIGBUS or the kernel's out-of-memory killer, not in an
exception. A mapping is never closed by hand: arrays may still point into it.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gear.errors import InsufficientMemory

if TYPE_CHECKING:
    import numpy.typing as npt

SHARED = Path("/dev/shm")
_CGROUP = Path("/sys/fs/cgroup")


def size_text(nbytes: float) -> str:
    """Bytes for people: ``1.50 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} TiB"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def memory_there() -> tuple[int, str]:
    """Bytes that shared segments could take if nothing else took any, and the name of the limit that says so."""
    stat = os.statvfs(SHARED)
    most, what = stat.f_blocks * stat.f_frsize, f"the size of the shared-memory filesystem {SHARED}"
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if machine < most:
        most, what = machine, "the memory of the machine"
    group = _control_group()
    for folder in (group, *group.parents):
        limit = _number(folder / "memory.max")
        if limit is not None and limit < most:
            most, what = limit, f"the memory limit of the control group ({folder / 'memory.max'})"
        if folder == _CGROUP:
            break
    return most, what


def _control_group() -> Path:
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return _CGROUP / line[3:].strip().lstrip("/")
    except OSError:
        pass
    return _CGROUP


def memory_left() -> tuple[int, str]:
    """Bytes this process may still take, and the name of the limit that says so."""
    left, what = 2**63, "no limit"
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                left, what = int(line.split()[1]) * 1024, "available memory of the machine"
    except OSError:
        pass
    group = _control_group()
    for folder in (group, *group.parents):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None and limit - used < left:
            left, what = limit - used, f"the memory limit of the control group ({folder / 'memory.max'})"
        if folder == _CGROUP:
            break
    return left, what


def check_room(nbytes: int, owner: str, *, shared: bool) -> None:
    """Refuse `nbytes` that do not fit, before anything is allocated.

    Raises
    ------
    InsufficientMemory
        With the size needed, the size there and how to raise it.
    """
    left, what = memory_left()
    remedy = "lower the capacity or free memory"
    if shared:
        stat = os.statvfs(SHARED)
        free = stat.f_bavail * stat.f_frsize
        if free < left:
            left, what = free, f"free space of the shared-memory filesystem {SHARED}"
            remedy = (
                f"lower the capacity, or enlarge it (mount -o remount,size=... {SHARED}; docker run --shm-size=...)"
            )
    if nbytes > left:
        raise InsufficientMemory(
            f"{owner} needs {size_text(nbytes)} ({nbytes} bytes), but {what} leaves {size_text(left)} "
            f"({left} bytes); {remedy}"
        )


def anonymous(nbytes: int, owner: str) -> npt.NDArray[np.uint8]:
    """Private zeroed memory with huge pages asked for, uint8[nbytes].

    Raises
    ------
    InsufficientMemory
        If it does not fit.
    """
    check_room(nbytes, owner, shared=False)
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _ask_for_huge_pages(mapping)
    return np.frombuffer(mapping, np.uint8)


def sparse(nbytes: int) -> npt.NDArray[np.uint8]:
    """Private zeroed memory of which only what is written to takes any, uint8[nbytes].

    Raises
    ------
    InsufficientMemory
        If the system does not give that many addresses.
    """
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)  # named from 3.11 on
        return np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)
    except OSError as error:
        raise InsufficientMemory(
            f"{size_text(nbytes)} ({nbytes} bytes) of addresses for a table's layout are not there ({error.strerror}); "
            "raise the limit (ulimit -v), or set vm.overcommit_memory to 0 or 1"
        ) from None


def create(path: Path, nbytes: int, owner: str) -> npt.NDArray[np.uint8]:
    """Create a shared segment, mode 0600, every page reserved, uint8[nbytes].

    Raises
    ------
    InsufficientMemory
        If it does not fit; no file remains.
    """
    check_room(nbytes, owner, shared=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
        mapping = mmap.mmap(descriptor, nbytes)
    except OSError as error:
        os.unlink(path)
        raise InsufficientMemory(
            f"{owner} needs {size_text(nbytes)} in {path.parent}, which ran out while it was reserved "
            f"({error.strerror}); lower the capacity or enlarge the filesystem"
        ) from None
    finally:
        os.close(descriptor)
    _ask_for_huge_pages(mapping)
    return np.frombuffer(mapping, np.uint8)


def attach(path: Path, nbytes: int) -> npt.NDArray[np.uint8]:
    """Map an existing segment, uint8[nbytes], writable; leaving never removes it (CPython issue 82300).

    Raises
    ------
    OSError
        If it is not there, not ours to open, or of another size.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        if size != nbytes:
            raise OSError(f"segment {path} has {size} bytes, expected {nbytes}")
        mapping = mmap.mmap(descriptor, nbytes)
    finally:
        os.close(descriptor)
    _ask_for_huge_pages(mapping)
    return np.frombuffer(mapping, np.uint8)


def _ask_for_huge_pages(mapping: mmap.mmap) -> None:
    """Random rows cost up to 1.6 x more without; a kernel that refuses is no error."""
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, AttributeError, ValueError):
        pass
