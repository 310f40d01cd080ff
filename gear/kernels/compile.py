"""How kernels are compiled, cached and kept from being compiled twice; the intrinsics they share.

Every compiled function of GEAR is decorated with `kernel`, or with `helper` if only kernels call it. Numba
keys its disk cache on the source file of the function alone: a kernel that calls another file, or captures
a constant of it, would survive that file's upgrade. `kernel` adds the digest of all GEAR sources its file
imports, at any depth. Where nothing can be cached (no writable directory) kernels compile in every process.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core import caching, cgutils
from numba.extending import intrinsic

from gear.kernels.parts import in_parts

try:
    import fcntl
except ImportError:  # pragma: no cover - a platform without flock compiles without the guard
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound="Callable[..., Any]")

PATIENCE = 120.0
"""Seconds to wait for another process that compiles; after that both do."""

_OPTIONS = {"nogil": True, "error_model": "numpy"}
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+gear\.?([\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n]*)|import[ \t]+gear\.([\w.]+))", re.M
)
_lock = threading.RLock()
_depth = 0
_directory: str | None = None


def kernel(function: Function, nogil: bool = True) -> Function:
    """Compile `function` with Numba at its first call: without the GIL, cached on disk, NumPy's error model."""
    global _directory
    dispatcher = in_parts(numba.njit(**{**_OPTIONS, "nogil": nogil})(function))
    try:
        dispatcher._cache = Cache(function)
        _directory = _directory or dispatcher.stats.cache_path
    except (RuntimeError, OSError, AttributeError):  # no directory to write to, no source, another Numba
        _warn_uncached()
        logger.debug("kernel %s has no cache", function.__qualname__, exc_info=True)
    return dispatcher


@functools.cache
def _warn_uncached() -> None:
    logger.warning(
        "kernels cannot be cached and compile for seconds in every process; set NUMBA_CACHE_DIR to a writable directory"
    )


def helper(function: Function) -> Function:
    """Compile `function` into the kernels that call it; it has no cache of its own."""
    return in_parts(numba.njit(**_OPTIONS)(function))


class Cache(caching.FunctionCache):  # the class that `njit(cache=True)` uses
    """Numba's cache, keyed on all sources of a kernel; a cache that fails is a cache that is empty."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = (self._cache_file._source_stamp, stamp(function.__code__.co_filename))

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """What the disk holds for a signature, or None."""
        try:
            return super().load_overload(signature, target_context)
        except Exception as error:  # a file cut short by a full disk or a crash of the machine: any error
            logger.warning("the cache of kernel %s cannot be read, it is made anew: %r", self._name, error)
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Write to disk what was compiled for a signature."""
        try:
            super().save_overload(signature, data)
        except OSError as error:
            logger.warning("kernel %s cannot be cached and compiles again next time: %s", self._name, error)


def stamp(path: str) -> str:
    """Digest of a source file and of every GEAR source it imports, at any depth.

    Only absolute imports count, at any indentation; those for type checking count too.
    """
    found, todo = {path}, [path]
    while todo:
        for other in _read(todo.pop())[1]:
            if other not in found:
                found.add(other)
                todo.append(other)
    return hashlib.sha256(b"".join(_read(name)[0] for name in sorted(found))).hexdigest()


@functools.cache
def _read(path: str) -> tuple[bytes, tuple[str, ...]]:
    """Digest of one source file and the paths of the GEAR modules it imports."""
    with open(path, "rb") as file:
        content = file.read()
    found: list[str] = []
    for module, names, plain in _IMPORT.findall(content.decode("utf-8", "replace")):
        base = os.path.join(_PACKAGE, *filter(None, (module or plain).split(".")))
        if not os.path.isdir(base):
            found.append(base + ".py")
            continue
        if base != _PACKAGE:  # the package itself only forwards names
            found.append(os.path.join(base, "__init__.py"))
        found += (os.path.join(base, f"{name}.py") for name in re.findall(r"\w+", names))
    return hashlib.sha256(content).digest(), tuple(name for name in found if os.path.exists(name))


@contextlib.contextmanager
def compile_lock() -> Iterator[None]:
    """Hold while first calling kernels: other processes wait, then load what this one compiled.

    A file lock in the directory of the kernel cache, released by the system if the process dies.
    Re-entrant within a thread. Without a writable directory it guards the threads of this process only.
    """
    global _depth
    with _lock:
        descriptor = _lock_file() if _depth == 0 else None
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1
            if descriptor is not None:
                # Unlocked by name, not by closing: a child forked meanwhile holds a copy of the descriptor.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)


def _lock_file() -> int | None:
    """Descriptor of the locked file, or None where there is none to be had."""
    if fcntl is None or _directory is None:
        return None
    try:
        descriptor = os.open(os.path.join(_directory, "compile.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    deadline = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            time.sleep(0.02)  # a wait that ends by itself: the system offers a lock, or a deadline, not both
        logger.warning("another process has compiled kernels for %g s; not waiting for it any longer", PATIENCE)
    except OSError:  # a filesystem without locks
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _after_fork() -> None:
    """A child starts with a free lock, whatever thread held it in the parent."""
    global _lock, _depth
    _lock, _depth = threading.RLock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


_BYTES = ir.IntType(8).as_pointer()


@intrinsic
def memcpy(typingctx, destination, source, count):  # type: ignore[no-untyped-def]
    """LLVM's memcpy between integer addresses; a constant count becomes a few moves."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        target, origin = (builder.inttoptr(a, _BYTES) for a in args[:2])
        cgutils.raw_memcpy(builder, target, origin, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def memset(typingctx, destination, value, count):  # type: ignore[no-untyped-def]
    """Set `count` bytes at an integer address to `value`."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        value = builder.trunc(args[1], ir.IntType(8))
        cgutils.memset(builder, builder.inttoptr(args[0], _BYTES), args[2], value)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def read_int32(typingctx, address):  # type: ignore[no-untyped-def]
    """The int32 at an integer address, as int64: read once and whole, though another process may write it."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(args[0], ir.IntType(32).as_pointer())
        value = builder.load_atomic(pointer, "monotonic", 4)
        return builder.sext(value, ir.IntType(64))

    return types.int64(types.int64), codegen


@intrinsic
def read_int64(typingctx, address):  # type: ignore[no-untyped-def]
    """The int64 at an integer address."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()))

    return types.int64(types.int64), codegen


@intrinsic
def read_float64(typingctx, address):  # type: ignore[no-untyped-def]
    """The float64 at an integer address: no test for a negative index, unlike ``array[i]``."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load(builder.inttoptr(args[0], ir.DoubleType().as_pointer()))

    return types.float64(types.int64), codegen


@intrinsic
def prefetch(typingctx, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line at an integer address; never faults."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        word = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [_BYTES, word, word, word]), "llvm.prefetch.p0"
        )
        builder.call(function, [builder.inttoptr(args[0], _BYTES), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def fence(typingctx):  # type: ignore[no-untyped-def]
    """Sequentially consistent fence: no load or store moves across it, in the compiler or the processor."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def order(typingctx):  # type: ignore[no-untyped-def]
    """Stores before it come before those behind it, in the order in which a killed process leaves them.

    The compiler moves none across it; it costs the processor nothing where stores keep their order (x86).
    """

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.fence("acq_rel")
        return context.get_dummy_value()

    return types.void(), codegen


@helper
def copy(destination: int, source: int, width: int) -> None:
    """Copy `width` bytes between integer addresses: 16 at a time, the tail overlapping."""
    if width >= 16:
        last, i = width - 16, 0
        while i < last:
            memcpy(destination + i, source + i, 16)
            i += 16
        memcpy(destination + last, source + last, 16)
    elif width >= 8:
        memcpy(destination, source, 8)
        memcpy(destination + width - 8, source + width - 8, 8)
    elif width >= 4:
        memcpy(destination, source, 4)
        memcpy(destination + width - 4, source + width - 4, 4)
    else:
        for i in range(width):
            memcpy(destination + i, source + i, 1)
