"""Compiled functions as parts of others: typed and lowered once, optimised with whatever calls them.

Numba optimises a function, and emits machine code for it, also where only other compiled functions call it, and
again in each of these: the storage of GEAR, where everything may evict, took two minutes to compile. A `Part` is the
unoptimised code of a function. `Joined` brings functions and all they call into one library, where LLVM sees everything
once. Written for the compiler inside Numba (0.61 to 0.68), which has no stable interface: where it is another, `works`
says so and every kernel compiles as Numba does it.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import numba
from numba.core import compiler, types, typing

try:
    from numba.core.codegen import JITCodeLibrary
    from numba.core.dispatcher import _FunctionCompiler  # type: ignore[attr-defined]
    from numba.core.environment import Environment
except ImportError:  # another Numba, with which nothing is joined
    JITCodeLibrary = _FunctionCompiler = Environment = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger(__name__)


class _Flags(compiler.Flags):
    """Options that are compared by what was set: Numba compares all fifty, a tenth of the time of type inference."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return (type(other) is _Flags and self._values == other._values) or super().__eq__(other)

    def __hash__(self) -> int:
        return _HASH


_HASH = hash(compiler.Flags())  # of Numba's own, whatever is set


class _Unoptimised(JITCodeLibrary or object):  # type: ignore[misc]
    """The code of one function as it was lowered; never run by itself."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalized = True

    def closure(self, found: dict[Any, None]) -> None:
        """Add the libraries that this one calls, at any depth, to `found`."""
        for library in self._linking_libraries:
            if library not in found:
                found[library] = None
                if isinstance(library, _Unoptimised):
                    library.closure(found)


class _Key:
    """Stands for a part where Numba looks an implementation up by the function that would be called."""


class Part:
    """A function as other compiled functions call it: one variant per types of its arguments.

    A constant argument, and an integer narrower than 64 bits, is given the same code as any other: each function that
    calls it would else bring a variant, a fifth of all.
    """

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher
        self.results: dict[tuple[types.Type, ...], Any] = {}

    def result(self, args: tuple[types.Type, ...]) -> Any:
        """Numba's `CompileResult` for `args`; its library cannot be run."""
        if args not in self.results:
            self.results[args] = self._compile(args)
        return self.results[args]

    def _compile(self, args: tuple[types.Type, ...]) -> Any:
        dispatcher = self._dispatcher
        flags = _Flags()
        dispatcher.targetdescr.options.parse_as_flags(flags, dispatcher.targetoptions)
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        context = dispatcher.targetctx
        library = _Unoptimised(context.codegen(), dispatcher.__qualname__)
        result = compiler.compile_extra(
            dispatcher.typingctx, context, dispatcher.py_func, args, None, flags, dispatcher.locals, library=library
        )
        if result.typing_error is not None:
            raise result.typing_error
        # Numba finds environments by name, also for what it loads from the cache: that of a part has no constants, and
        # would stand for the one that turns an array into a result.
        Environment._memo.pop(result.environment.env_name, None)
        key = _Key()
        context.insert_user_function(key, result.fndesc, [library])
        return result._replace(entry_point=key)

    def get_call_template(self, args: tuple[types.Type, ...], keywords: dict[str, types.Type]) -> Any:
        """What Numba asks when the type of a call is inferred."""
        if not works():
            return type(self._dispatcher).get_call_template(self._dispatcher, args, keywords)
        plain = {name: _plain(kind) for name, kind in keywords.items()}
        signature, args = self._dispatcher.fold_argument_types(tuple(map(_plain, args)), plain)
        result = self.result(tuple(map(_plain, args)))
        name = self._dispatcher.py_func.__name__
        template = typing.make_concrete_template(f"CallTemplate({name})", name, [result.signature])
        return template, signature, args, {}

    def get_overload(self, signature: Any) -> Any:
        """What Numba asks when the call is lowered."""
        if not works():
            return type(self._dispatcher).get_overload(self._dispatcher, signature)
        return self.results[tuple(getattr(signature, "args", signature))].entry_point


class JoiningCompiler(_FunctionCompiler or object):  # type: ignore[misc]
    """Compiles a function for calls from Python: its part and all it calls, in one library."""

    part: Part

    def _compile_core(self, args: Iterable[types.Type], return_type: Any) -> Any:
        if not works():
            return super()._compile_core(args, return_type)
        return join(self.py_func.__qualname__, [self.part.result(tuple(args))])[0]


def join(name: str, parts: list[Any]) -> list[Any]:
    """Bring `parts` (results of `Part.result`) and all they call into one library; results that can be called."""
    context = parts[0].target_context
    library = context.codegen().create_library(name)
    library.enable_object_caching()
    found: dict[Any, None] = {}
    for part in parts:
        found[part.library] = None
        part.library.closure(found)
    for other in found:
        library.add_linking_library(other)
    for part in parts:
        context.create_cpython_wrapper(library, part.fndesc, part.environment, part.call_helper, release_gil=True)
    library.finalize()
    return [
        part._replace(
            library=library,
            entry_point=context.get_executable(library, part.fndesc, part.environment),
            reload_init=[],  # for threads of Numba, which no kernel uses
            referenced_envs=(),  # those of parts are never looked at
        )
        for part in parts
    ]


def in_parts(dispatcher: Any) -> Any:
    """Have a compiled function linked into those that call it before anything is optimised."""
    if _FunctionCompiler is None or JITCodeLibrary is None:
        works()  # says that it does not
        return dispatcher
    if not hasattr(dispatcher, "_compiler"):  # NUMBA_DISABLE_JIT
        return dispatcher
    return _in_parts(dispatcher)


def _in_parts(dispatcher: Any) -> Any:
    part = Part(dispatcher)
    dispatcher.get_call_template, dispatcher.get_overload = part.get_call_template, part.get_overload
    dispatcher._compiler.__class__ = JoiningCompiler
    dispatcher._compiler.part = part
    dispatcher._compiling_counter = _Uncounted()
    return dispatcher


class _Uncounted:
    """Numba refuses a call of what is being compiled, as a recursion. With all of a program its own call is none."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def __bool__(self) -> bool:
        return False


def works() -> bool:
    """Whether this Numba is as expected; found out when something is to be compiled, and said in the log if it is not.

    The first call tries it on two functions, a matter of milliseconds beside what is compiled then.
    """
    return _trying or _works()


_trying = False


@functools.cache
def _works() -> bool:
    global _trying
    try:
        if _FunctionCompiler is None or JITCodeLibrary is None:
            raise ImportError("names of it are missing")
        _trying = True
        one = _in_parts(numba.njit(lambda x: x + 1))
        two = _in_parts(numba.njit(lambda x: one(x) * 2))
        if two(3) == 8:
            return True
        reason = "it joins functions wrongly"
    except Exception as error:
        logger.debug("joining functions", exc_info=True)
        reason = repr(error)
    finally:
        _trying = False
    logger.warning(
        "Numba %s is none of 0.61 to 0.68, of which the inside is known (%s): kernels compile one by one, and a first "
        "start takes minutes",
        numba.__version__,
        reason,
    )
    return False


def _plain(kind: Any) -> Any:
    kind = types.unliteral(kind)  # type: ignore[attr-defined]
    return types.int64 if isinstance(kind, types.Integer) and kind.signed else kind  # type: ignore[attr-defined]
