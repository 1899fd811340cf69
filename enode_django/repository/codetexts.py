"""Code as texts: the same in every process that runs the same source, and different if the code does something else.

The texts are made of sources, see `enode_django.repository.sources`. Code without a source is described by its
bytecode, which may differ in the next version of Python.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, get_type_hints
from uuid import UUID

from enode_django.domain.declarations import Declared
from enode_django.repository.sources import source_of
from enode_django.repository.typetexts import type_text, value_classes

_PLAIN = (type(None), bool, int, float, complex, str, bytes, Decimal, UUID, date, time, timedelta)
_LEFT_OUT = frozenset({"EXTENDED_ARG", "CACHE", "NOP", "RESUME", "PRECALL"})
_LINES = frozenset({"__firstlineno__", "__static_attributes__"})
"""Attributes that Python 3.13 adds to classes: the first line, and the names that methods set."""
_HAS_DOCSTRING = 0x4000000
"""A flag of code that Python 3.14 adds."""


SOURCE = "source"
"""The tag of fingerprints that any version of Python makes of the same source."""


def digest(lines: Iterable[str], reader: CodeReader) -> str:
    """Return ``<tag>:<32 hexadecimal digits>`` of lines that the reader has made. Fingerprints with different tags
    cannot be compared: if code has no source, the tag is that of this version of Python."""
    text = "\n".join(lines)
    hexadecimal = blake2b(text.encode(errors="backslashreplace"), digest_size=16).hexdigest()
    return f"{sys.implementation.cache_tag if reader.is_of_this_python else SOURCE}:{hexadecimal}"


class CodeReader:
    """Follows names from function to function, within one package, and shows each function and class once.

    The meaning of ``value.name`` is not known before it runs, so a method of that name of any of the ``owners`` counts.
    """

    def __init__(self, owners: Sequence[type]) -> None:
        self._owners = list(owners)
        self.is_of_this_python = False
        """True if a text depends on the version of Python, because some code has no source."""
        self._numbers: dict[object, int] = {}
        self._inside: set[int] = set()

    def own_methods(self, cls: type) -> Iterator[str]:
        """Yield what a class and its bases in the application define: any operator of a value may be used."""
        if not self._is_new(cls):
            return
        if cls not in self._owners:
            self._owners.append(cls)
        yield f"class {cls.__qualname__}"
        yield from self._shape(cls)
        for base in _bases(cls):
            for name, member in sorted(vars(base).items()):
                function = _function_of(member)
                # Dataclasses generate some methods from the fields; every enum and named tuple has some.
                if function is not None and name != "__repr__" and not _is_made(function):
                    yield f"{name} {self.value(member)}"

    def methods_named(self, cls: type, name: str) -> Iterator[str]:
        """Yield the methods of this name in the class and its bases: one may call the next by ``super()``."""
        for base in _bases(cls):
            if name in vars(base):
                yield f"{name} {self.value(vars(base)[name])}"

    def _shape(self, cls: type) -> Iterator[str]:
        if issubclass(cls, Enum):
            yield from (f"{member.name} = {self.value(member.value)}" for member in cls)
        elif dataclasses.is_dataclass(cls):
            hints = get_type_hints(cls)
            for field in dataclasses.fields(cls):
                made = field.default_factory is not dataclasses.MISSING
                default = self.value(field.default_factory if made else field.default)
                yield f"{field.name}: {type_text(hints[field.name])} = {default}"
                for inner in value_classes(hints[field.name]):
                    yield from self.own_methods(inner)

    def value(self, value: Any) -> str:
        """Return a text for any value. Values that cannot be inspected are represented by their class."""
        kind = type(value)
        if kind in _PLAIN:
            return f"{kind.__name__} {value!r}"
        if isinstance(value, Enum):
            return f"{kind.__qualname__}.{value.name} {self.value(value.value)}"
        if isinstance(value, CodeType):
            self.is_of_this_python = True
            return self._code(value, {}, "")
        function = _function_of(value)
        if function is not None:
            return self._function(function) + self._around(value)
        if isinstance(value, type):
            return f"class {_place(value)}.{value.__qualname__}"
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        return self._contents(value)

    def _contents(self, value: Any) -> str:
        name = f"{_place(type(value))}.{type(value).__qualname__}"
        if id(value) in self._inside:
            return f"{name} again"
        self._inside.add(id(value))
        try:
            if isinstance(value, tuple | list):
                return f"{name} [{', '.join(map(self.value, value))}]"
            if isinstance(value, set | frozenset):
                return f"{name} [{', '.join(sorted(map(self.value, value)))}]"
            if isinstance(value, Mapping):
                return f"{name} [{', '.join(f'{self.value(k)}: {self.value(v)}' for k, v in value.items())}]"
            if isinstance(value, BuiltinFunctionType):
                return f"{value.__qualname__} of {self.value(value.__self__)}"
            if dataclasses.is_dataclass(value):
                return f"{name} {self.value({f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)})}"
            return name
        finally:
            self._inside.discard(id(value))

    def _around(self, value: Any) -> str:
        """Return a text for the arguments of a partial, or the setter of a property."""
        if isinstance(value, functools.partial | functools.partialmethod):
            return f" with {self.value(value.args)} {self.value(value.keywords)}"
        if isinstance(value, property) and value.fset is not None:
            return f" set by {self.value(value.fset)}"
        return ""

    def _function(self, function: FunctionType) -> str:
        if not self._is_new(function):
            return f"function {self._numbers[function]}"
        if _is_from_elsewhere(function):
            return f"function {_place(function)}.{function.__qualname__}"
        defaults = self.value((function.__defaults__, function.__kwdefaults__))
        closure = ", ".join(self.value(_content(cell)) for cell in function.__closure__ or ())
        return f"function({defaults}; {closure}; {self._body(function)})"

    def _body(self, function: FunctionType) -> str:
        package, source = _package(function.__module__), source_of(function)
        if source is None:
            self.is_of_this_python = True
            return self._code(function.__code__, function.__globals__, package)
        meanings = self._meanings(source.names, function.__globals__, package) if package else ()
        return "{" + "; ".join([source.text, *meanings]) + "}"

    def _is_new(self, thing: object) -> bool:
        if thing in self._numbers:
            return False
        self._numbers[thing] = len(self._numbers)
        return True

    def _code(self, code: CodeType, known: Mapping[str, Any], package: str) -> str:
        """Return a text for the code, with the values of its names that are of the same package."""
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_HAS_DOCSTRING)
        lines = [f"{shape} {code.co_varnames[: sum(shape[:3])]} {code.co_exceptiontable.hex()}"]
        for name, argument in _instructions(code):
            shown = self._code(argument, known, package) if isinstance(argument, CodeType) else self.value(argument)
            lines.append(f"{name} {shown}")
        if package:
            lines.extend(self._meanings(code.co_names, known, package))
        return "{" + "; ".join(lines) + "}"

    def _meanings(self, names: Sequence[str], known: Mapping[str, Any], package: str) -> Iterator[str]:
        for name in names:
            if name in known:
                yield from self._global(name, known[name], names, package)
            if not name.startswith("__"):
                yield from self._attribute(name)

    def _attribute(self, name: str) -> Iterator[str]:
        for owner in list(self._owners):
            for base in _bases(owner):
                member = vars(base).get(name)
                if _function_of(member) is not None or _is_constant(name, member):
                    yield f".{name} {self.value(member)}"

    def _global(self, name: str, value: Any, names: Sequence[str], package: str) -> Iterator[str]:
        if isinstance(value, ModuleType):
            if _package(value.__name__) == package:
                yield from (
                    f"{name}.{attribute} {line}"
                    for attribute in names
                    if attribute in vars(value)
                    for line in self._global(attribute, vars(value)[attribute], (), package)
                )
            return
        if isinstance(value, type):
            yield f"{name} {self.value(value)}"
            if _package(value.__module__) == package and not issubclass(value, Declared):
                yield from self.own_methods(value)
            return
        function = _function_of(value)
        if function is not None:
            followed = _package(function.__module__) == package
            yield f"{name} {self.value(value) if followed else f'{function.__module__}.{function.__qualname__}'}"
        elif _is_constant(name, value):
            yield f"{name} {self.value(value)}"


def _is_constant(name: str, value: Any) -> bool:
    """Return True for a constant: a value of an immutable type, or one whose name is in capitals."""
    if isinstance(value, (*_PLAIN, Enum, tuple, frozenset)):
        return value is not None
    return name.isupper() and not callable(value)


def _instructions(code: CodeType) -> Iterator[tuple[str, Any]]:
    """Return the instructions, without what depends on lines: a jump's target counts instructions."""
    found: list[tuple[str, Any]] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in _LEFT_OUT:
            continue
        if instruction.argval in _LINES and instruction.opname == "STORE_NAME":
            found.pop()
            continue
        found.append((instruction.opname, instruction.argval))
    return iter(found)


def _function_of(value: Any) -> FunctionType | None:
    """Return the Python function behind a method, property, partial or the like."""
    while True:
        if isinstance(value, FunctionType):
            return value
        if isinstance(value, staticmethod | classmethod | MethodType):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(value, functools.partial | functools.partialmethod | functools.cached_property):
            value = value.func
        else:
            return None


_NOT_THE_APPLICATION = ("enode_django", "django", "builtins", "enum", "typing")


def _bases(cls: type) -> list[type]:
    """Return the application's classes in the MRO of a class."""
    return [base for base in cls.__mro__ if _package(base.__module__) not in _NOT_THE_APPLICATION]


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _place(thing: type | FunctionType) -> str:
    """Return the module of a class or function; of the standard library, which moves its modules, the package."""
    package = _package(thing.__module__)
    return package if package in sys.stdlib_module_names else thing.__module__


def _is_from_elsewhere(function: FunctionType) -> bool:
    """Return True for functions of Django and of the standard library in classes of the application."""
    package = _package(function.__globals__.get("__name__"))
    return package == "django" or package in sys.stdlib_module_names


def _is_made(function: FunctionType) -> bool:
    package = _package(function.__globals__.get("__name__"))
    return function.__code__.co_filename == "<string>" or package in sys.stdlib_module_names


def _content(cell: Any) -> Any:
    """Return the content of a cell. For a container, such as a decorator's cache, return its class."""
    try:
        content = cell.cell_contents
    except ValueError:
        return None  # the cell is still empty
    return type(content) if isinstance(content, dict | list | set) else content
