"""Programs: kernels compiled together, cached in one file and loaded together.

What several kernels call is optimised once, which makes a first start several times shorter than kernel by kernel. The
first call of any kernel of a program loads the whole, or compiles it. With other types than those declared a kernel
compiles for itself, as every kernel outside a program does.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
from typing import TYPE_CHECKING, Any

import numba
from llvmlite import binding
from numba import types
from numba.core import caching
from numba.core.compiler_lock import global_compiler_lock

from gear.kernels.compile import Cache, kernel, stamp
from gear.kernels.parts import JoiningCompiler, join, works

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

FLAG = types.boolean
FLOATS = types.float64[::1]
LONGS = types.int64[::1]
OCTETS = types.uint8[::1]
PLAN = types.int64[:, ::1]
SHORTS = types.int32[::1]
SIGNS = types.int8[::1]

_COMMON = {"segment": OCTETS, "params": LONGS}

Key = tuple[str, str]


class Program:
    """Kernels of several modules that are compiled and loaded as one.

    Parameters
    ----------
    name : str
    modules : names of the modules that hold its kernels; they are imported when the program is compiled.
    """

    def __init__(self, name: str, *modules: str) -> None:
        self.name, self._modules = name, modules
        self._members: dict[Key, tuple[Any, tuple[types.Type, ...]]] = {}
        self._results: dict[Key, Any] | None = None

    def kernel(self, **kinds: types.Type) -> Callable[[Callable[..., Any]], Any]:
        """A kernel of the program; `kinds` are the types of its arguments that are no int64.

        ``segment`` and ``params`` need not be named. Called from Python it must return numbers: what an array is made
        with is not kept for each kernel of a program.
        """

        def decorate(function: Callable[..., Any]) -> Any:
            names = list(inspect.signature(function).parameters)
            unknown = kinds.keys() - names
            assert not unknown, f"{function.__qualname__} has no arguments {unknown}"
            known = {**_COMMON, **kinds}
            key = (function.__module__, function.__qualname__)
            assert key[0] in self._modules, f"program {self.name} does not list {key[0]}"
            dispatcher: Any = kernel(function)
            if not isinstance(getattr(dispatcher, "_compiler", None), JoiningCompiler):  # nothing can be joined
                return dispatcher
            args = tuple(known.get(name, types.int64) for name in names)
            self._members[key] = (dispatcher, args)
            if isinstance(dispatcher._cache, Cache):  # else nothing can be cached
                dispatcher._cache = _Member(function, self, key, args)
            dispatcher._compiler.__class__ = _MemberCompiler
            dispatcher._compiler.program, dispatcher._compiler.declared = self, (key, args)
            return dispatcher

        return decorate

    def is_cached(self) -> bool:
        """Whether the disk holds the program as its sources are now."""
        return self._load() is not None

    def load(self) -> None:
        """Have every kernel compiled, or loaded from the cache; does nothing where nothing can be joined."""
        with global_compiler_lock:
            if self._load() is None and works():
                self.compile()

    def result(self, key: Key) -> Any:
        """Numba's `CompileResult` of a kernel, compiled with all others if need be."""
        results = self._load()
        if results is None:
            results = self.compile()
        return results[key]

    def loaded(self, key: Key) -> Any:
        """The same if it is on disk, else None."""
        results = self._load()
        return None if results is None else results.get(key)

    def compile(self) -> dict[Key, Any]:
        """Compile every kernel and write the program to the cache."""
        for module in self._modules:
            importlib.import_module(module)
        members = sorted(self._members.items(), key=lambda member: member[0])
        parts = [dispatcher._compiler.part.result(args) for _, (dispatcher, args) in members]
        results = join(f"program {self.name}", parts)
        self._results = {key: result for (key, _), result in zip(members, results, strict=True)}
        cache = self._cache()
        if cache is not None:
            cache.save_overload((), _Compiled(self._results))
        return self._results

    def _load(self) -> dict[Key, Any] | None:
        with global_compiler_lock:
            if self._results is not None:
                return self._results
            cache = self._cache()
            compiled = cache and cache.load_overload((), numba.core.registry.cpu_target.target_context)
            self._results = compiled.results if compiled else None
            return self._results

    def _cache(self) -> _ProgramCache | None:
        """The program on disk; None where there is no directory to write to."""
        try:
            return _ProgramCache(self.name, self._modules)
        except (RuntimeError, OSError):  # as for any kernel
            return None


class _Compiled:
    """The results of a program, as Numba's cache wants them."""

    def __init__(self, results: dict[Key, Any]) -> None:
        self.results = results
        self.codegen = next(iter(results.values())).codegen


class _Member(Cache):
    """The cache of a program's kernel: with the types declared, the program's."""

    def __init__(self, function: Callable[..., Any], program: Program, key: Key, args: tuple[types.Type, ...]) -> None:
        super().__init__(function)
        self._program, self._key, self._args = program, key, args

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        if _arguments(signature) == self._args:
            joined = self._program.loaded(self._key)
            if joined is not None or works():
                return joined
        return super().load_overload(signature, target_context)

    def save_overload(self, signature: Any, data: Any) -> None:
        if _arguments(signature) != self._args or not works():
            super().save_overload(signature, data)


class _MemberCompiler(JoiningCompiler):
    """Compiles a kernel of a program: with the types declared, all of the program."""

    program: Program
    declared: tuple[Key, tuple[types.Type, ...]]

    def _compile_core(self, args: Any, return_type: Any) -> Any:
        key, kinds = self.declared
        if tuple(args) == kinds and works():
            return self.program.result(key)
        return super()._compile_core(args, return_type)


def _arguments(signature: Any) -> tuple[types.Type, ...]:
    return tuple(getattr(signature, "args", signature))


class _ProgramCacheImpl(caching.CacheImpl):
    """Turns a program into what is written to disk, and back."""

    def reduce(self, compiled: _Compiled) -> Any:
        library = next(iter(compiled.results.values())).library
        members = []
        for key, result in compiled.results.items():
            result.fndesc.typemap = result.fndesc.calltypes = None
            members.append((key, result.fndesc, result.environment, result.signature))
        first = next(iter(compiled.results.values()))
        wrappers = [result.fndesc.llvm_cpython_wrapper_name for result in compiled.results.values()]
        code = (library._get_compiled_object(), _stubs(wrappers))
        return (library.name, "object", code), members, first.reload_init, first.referenced_envs

    def rebuild(self, target_context: Any, payload: Any) -> _Compiled:
        code, members, reload_init, environments = payload
        for function in reload_init:
            function()
        library = target_context.codegen().unserialize_library(code)
        results = {}
        for key, fndesc, environment, signature in members:
            results[key] = numba.core.compiler.compile_result(
                typing_context=target_context.typing_context,
                target_context=target_context,
                library=library,
                environment=environment,
                entry_point=target_context.get_executable(library, fndesc, environment),
                fndesc=fndesc,
                signature=signature,
                objectmode=False,
                lifted=(),
                reload_init=reload_init,
                referenced_envs=environments,
            )
        for environment in environments:
            library.codegen.set_env(environment.env_name, environment)
        return _Compiled(results)

    def check_cachable(self, compiled: _Compiled) -> bool:
        return not compiled.results[next(iter(compiled.results))].library.has_dynamic_globals


def _stubs(names: list[str]) -> bytes:
    """LLVM bitcode that names functions: what Numba reads beside object code, to know what it defines."""
    text = "\n".join(f'define void @"{name}"() {{\n  ret void\n}}' for name in names)
    return binding.parse_assembly(text).as_bitcode()


class _ProgramCache(Cache):
    """The cache file of a program."""

    _impl_class = _ProgramCacheImpl

    def __init__(self, name: str, modules: tuple[str, ...]) -> None:
        super().__init__(_stubs)
        self._name = f"of program {name}"
        specs = [importlib.util.find_spec(module) for module in modules]
        paths = sorted(spec.origin for spec in specs if spec is not None and spec.origin is not None)
        self._cache_file = caching.IndexDataCacheFile(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base.replace(_stubs.__name__, name),
            source_stamp=tuple(map(stamp, paths)),
        )
