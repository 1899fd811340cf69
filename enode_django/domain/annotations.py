"""Find the classes that a handler takes by the annotation of its parameter."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from enode_django.exceptions import DefinitionError

Class = TypeVar("Class", bound=type)


def is_method(handler: object) -> bool:
    """Return True for a function that was defined in the body of a class and is not bound to an instance."""
    outer, _, _ = getattr(handler, "__qualname__", "").rpartition(".")
    return bool(outer) and not outer.endswith("<locals>") and not hasattr(handler, "__self__")


def is_bare(given: Sequence[object]) -> bool:
    """Return True if a decorator without parentheses, such as ``@applies``, was given the function that it marks."""
    return (
        len(given) == 1 and not isinstance(given[0], type) and (callable(given[0]) or isinstance(given[0], classmethod))
    )


def handled_classes(
    decorator: str, handler: Callable[..., Any], given: Sequence[Class], base: Any, *, last: bool = False
) -> Sequence[Class]:
    """Return the classes ``given`` to a decorator, or else those in the annotation of a parameter of the handler: the
    first one (of a method: the one after ``self``), or with ``last`` the last positional one without a default.

    The annotated classes must derive from ``base``, a class or a union of classes. Call it while the handler is being
    defined, because a class may be local to the function that defines both. Raises `DefinitionError` if there is no
    such annotation, and for a given class that the annotation excludes.
    """
    name = getattr(handler, "__qualname__", repr(handler))
    parameter = _last_parameter(handler) if last else _first_parameter(handler)
    try:
        annotated = () if parameter is None else _classes_of(handler, parameter.annotation)
    except Exception as error:  # evaluating an annotation may raise anything
        if given:
            return given
        raise DefinitionError(
            f"the annotation of {name}() cannot be resolved here: {error}; write @{decorator}(…) with the class"
        ) from error
    if given:
        for cls in given:
            if annotated and not _is_one_of(cls, annotated):
                raise DefinitionError(
                    f"@{decorator}({cls.__qualname__}) marks {name}(), whose parameter is annotated with "
                    f"{_names(annotated)}; name the same class in both places, or in one"
                )
        return given
    if not annotated:
        raise DefinitionError(
            f"{name}() does not say what it takes; annotate its parameter with a class, or write @{decorator}(…)"
        )
    for cls in annotated:
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise DefinitionError(
                f"@{decorator} marks {name}(), whose parameter is annotated with {_names([cls])}; "
                f"annotate it with classes of {_names(typing.get_args(base) or [base])}"
            )
    return annotated


def _first_parameter(handler: Callable[..., Any]) -> inspect.Parameter | None:
    own = 1 if is_method(handler) and not isinstance(handler, staticmethod) else 0
    parameters = _parameters(handler)
    return parameters[own] if len(parameters) > own else None


def _last_parameter(handler: Callable[..., Any]) -> inspect.Parameter | None:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in _parameters(handler) if one.kind in kinds and one.default is one.empty]
    return required[-1] if required else None


def _parameters(handler: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return list(inspect.signature(_undecorated(handler)).parameters.values())
    except (TypeError, ValueError):
        return ()  # written in C, or an object without a signature


def _undecorated(handler: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = handler.__func__ if isinstance(handler, staticmethod | classmethod) else handler
    return function


def _classes_of(handler: Callable[..., Any], annotation: Any) -> tuple[Any, ...]:
    """Return the classes in an annotation. Other annotations of the handler are not evaluated: their names may be
    imported for type checkers only."""
    if annotation is inspect.Parameter.empty:
        return ()
    function = inspect.unwrap(_undecorated(handler))
    names = getattr(function if hasattr(function, "__globals__") else type(function).__call__, "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    resolved = typing.get_type_hints(holder, globalns=names, localns=_local_names(names))["it"]
    resolved = getattr(resolved, "__value__", resolved)  # type Either = A | B
    return typing.get_args(resolved) if _is_union(resolved) else (resolved,)


def _local_names(module: dict[str, Any]) -> dict[str, Any]:
    """Return the local names of all running functions and class bodies of a module; inner ones win."""
    scopes, frame = [], sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals is module and frame.f_locals is not module:
            scopes.append(frame.f_locals)
    return {name: value for scope in reversed(scopes) for name, value in scope.items()}


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_one_of(cls: type, annotated: Sequence[Any]) -> bool:
    """Return True also if it cannot be decided: ``annotated`` has a protocol, a type variable or Any."""
    try:
        return Any in annotated or issubclass(cls, tuple(annotated))
    except TypeError:
        return True


def _names(classes: Sequence[Any]) -> str:
    return " | ".join(
        cls.__qualname__ if isinstance(cls, type) and not typing.get_args(cls) else str(cls) for cls in classes
    )
