"""Compilation of each kernel to machine code once, instead of once for each caller.

Numba translates every function with all that it calls. Here a function that only kernels call
remains LLVM code, and one that Python calls is linked with what it needs. A first run takes 8 s
instead of 13 to 27.
"""

# mypy: disable-error-code="no-untyped-call,misc"

import functools
from importlib import import_module
from typing import Any

from llvmlite import binding as llvm
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

LIBRARY = CompileResult._fields.index("library")
_dynfunc: Any = import_module("numba._dynfunc")


class _Library(JITCodeLibrary):
    """The code of one function, and the libraries that it needs."""

    def add_linking_library(self, library: Any) -> None:
        """Add a library as numba does, without translating it."""
        self._linking_libraries.append(library)

    def _optimize_final_module(self) -> None:
        """Run the optimizer twice, or receiving a message is 10 % slower."""
        super()._optimize_final_module()
        super()._optimize_final_module()

    def _get_module_for_linking(self) -> Any:
        """Return this code with all that it needs, to be linked into a caller."""
        if self._shared_module is None:
            module = self._final_module.clone()
            for function in module.functions:
                if not function.is_declaration and function.linkage == llvm.Linkage.external:
                    function.linkage = llvm.Linkage.linkonce_odr
            for library in dict.fromkeys(self._linking_libraries):
                self._reload_init.update(library._reload_init)
                module.link_in(library._get_module_for_linking(), preserve=True)
            self._shared_module = module
        return self._shared_module

    def serialize_using_object_code(self) -> Any:
        """Return the argument of `_unserialize`, without the LLVM code that numba keeps, too."""
        if not self._finalized:
            return self.name, None, self._get_module_for_linking().as_bitcode()
        module = self._final_module
        parts = (*module.functions, *module.global_variables)
        symbols = [part.name for part in parts if not part.is_declaration]
        return self.name, symbols, self._get_compiled_object()

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> Any:
        name, symbols, code = state
        library = codegen.create_library(name)
        if symbols is None:
            library._shared_module = llvm.parse_bitcode(code)
        else:
            library.enable_object_caching()
            library._set_compiled_object(code)
            library._finalize_final_module()
            codegen._engine._defined_symbols.update(symbols)
        return library


@functools.cache
def link_once() -> None:
    """Make numba translate only functions that Python calls."""
    context = cpu_target.target_context
    rtsys.initialize(context)
    context.codegen()._library_class = _Library
    context.get_executable = functools.partial(_executable, context)
    context.create_cfunc_wrapper = lambda *_: None  # C calls no kernel


def _executable(context: Any, library: Any, description: Any, environment: Any) -> Any:
    """Return the callable of a function; one without a wrapper for Python has no address."""
    try:
        library._finalized or library.get_function(description.llvm_cpython_wrapper_name)
    except NameError:
        name = description.qualname.rpartition(".")[2]
        module = description.lookup_module()
        return _dynfunc.make_function(module, name, "", 0, environment, (library,))
    function = type(context).get_executable(context, library, description, environment)
    for variable in library._final_module.global_variables:
        callee = lookup_environment(variable.name)
        if callee is not None:
            library.codegen.set_env(variable.name, callee)
    return function


def parts_of(result: Any) -> tuple[Any, ...] | None:
    """Return the parts to rebuild a function from; None if it has an address of this process."""
    library = result[LIBRARY]
    *parts, environments = result._reduce()
    module = library._final_module if library._finalized else library._get_module_for_linking()
    if any(part.name.startswith("numba.dynamic.globals") for part in module.global_variables):
        return None
    # LLVM code has no address yet to which the environment of a function could be written.
    return *parts, environments if library._finalized else ()
