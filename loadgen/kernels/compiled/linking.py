"""Numba's way from its own code to the processor's, each kernel once and not once for each caller.

Numba makes machine code of every function that it compiles, with all that it calls in it: a
function eight calls deep is optimized and translated nine times. Here a function that Python does
not call stays in LLVM's code, as numba wrote it. Only what Python calls is put together with all
that it needs, optimized, and translated.
"""

# mypy: disable-error-code="no-untyped-call,misc"

import functools
from importlib import import_module
from operator import attrgetter
from typing import Any

from llvmlite import binding as llvm
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import compile_result
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

_dynfunc: Any = import_module("numba._dynfunc")

code_of = attrgetter("library")
"""The code of what numba compiled, as its `codegen` keeps it."""


class _Library(JITCodeLibrary):
    """The code of one function, and the libraries that it needs."""

    def add_linking_library(self, library: Any) -> None:
        """As numba's, without translating the other one."""
        self._linking_libraries.append(library)

    def _optimize_final_module(self) -> None:
        """As numba's, twice: the second time sees what the first one has put into its callers.

        Receiving a message is 10 % slower without.
        """
        super()._optimize_final_module()
        super()._optimize_final_module()

    def _get_module_for_linking(self) -> Any:
        """This code with all that it needs, to be linked into what calls it."""
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


@functools.cache
def link_once() -> None:
    """Have numba make machine code of what Python calls alone."""
    context = cpu_target.target_context
    context.codegen()._library_class = _Library
    context.get_executable = functools.partial(_executable, context)
    context.create_cfunc_wrapper = lambda *_: None  # for C, which calls nothing of ours


def _executable(context: Any, library: Any, description: Any, environment: Any) -> Any:
    """As numba's, but only for what has a wrapper for Python."""
    try:
        library.get_function(description.llvm_cpython_wrapper_name)
    except NameError:
        return _name_for(library, description, environment)
    function = type(context).get_executable(context, library, description, environment)
    _set_environments(library, _environments(library))
    return function


def _name_for(library: Any, description: Any, environment: Any) -> Any:
    """What a function is known by that has no address."""
    name = description.qualname.rpartition(".")[2]
    return _dynfunc.make_function(description.lookup_module(), name, "", 0, environment, (library,))


def _environments(library: Any) -> tuple[Any, ...]:
    """What the code of a library keeps of Python's objects."""
    names = [variable.name for variable in library._final_module.global_variables]
    found = (lookup_environment(name) for name in names if name.startswith("_ZN08NumbaEnv"))
    return tuple(one for one in found if one is not None)


def _set_environments(library: Any, environments: tuple[Any, ...]) -> None:
    for environment in environments:
        library.codegen.set_env(environment.env_name, environment)


def can_be_kept(result: Any) -> bool:
    """Whether the code is of use to another process, and holds no address of this one."""
    library = code_of(result)
    module = library._final_module if library._finalized else library._get_module_for_linking()
    names = (variable.name for variable in module.global_variables)
    addresses = any(name.startswith("numba.dynamic.globals") for name in names)
    return not addresses and not result.lifted


def parts_of(result: Any) -> tuple[Any, ...]:
    """A compiled function as what can be pickled."""
    description, library = result.fndesc, code_of(result)
    description.typemap = description.calltypes = None
    about = description, result.environment, result.signature, result.reload_init
    if not library._finalized:
        return None, library._get_module_for_linking().as_bitcode(), (), *about
    symbols = [
        one.name
        for some in (library._final_module.functions, library._final_module.global_variables)
        for one in some
        if not one.is_declaration
    ]
    return symbols, library._get_compiled_object(), _environments(library), *about


def from_parts(context: Any, parts: tuple[Any, ...]) -> Any:
    """The function that `parts_of` was given, in another process."""
    symbols, code, environments, description, environment, signature, reload_init = parts
    for initialize in reload_init:
        initialize()
    library = context.codegen().create_library(description.qualname)
    if symbols is None:
        library._shared_module = llvm.parse_bitcode(code)
        function = _name_for(library, description, environment)
    else:
        rtsys.initialize(context)
        library.enable_object_caching()
        library._set_compiled_object(code)
        library._finalize_final_module()
        context.codegen()._engine._defined_symbols.update(symbols)
        function = type(context).get_executable(context, library, description, environment)
        _set_environments(library, environments)
    return compile_result(
        typing_context=context.typing_context,
        target_context=context,
        entry_point=function,
        signature=signature,
        objectmode=False,
        lifted=(),
        fndesc=description,
        library=library,
        environment=environment,
        reload_init=reload_init,
        referenced_envs=environments,
    )
