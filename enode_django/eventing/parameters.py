"""The parameter of generic subscribers, such as the model of `ModelProjection[Row]`."""

from __future__ import annotations

from typing import Any, get_args, get_origin


def parameter_of(cls: type[Any], kind: type[Any]) -> Any:
    """Return what stands in ``cls`` for the parameter of ``kind``, one of its bases: a class, or a type variable.

    It is followed through generic classes in between, whose other parameters are passed over::

        class Cancelling(ProcessManager[Order], Generic[C]): ...
        class Cancels(Cancelling[CancelOrder]): ...  # the parameter is Order
    """
    if cls is kind:
        (parameter,) = cls.__parameters__
        return parameter
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin = get_origin(base) or base
        if isinstance(origin, type) and issubclass(origin, kind):
            parameter = parameter_of(origin, kind)
            arguments = dict(zip(getattr(origin, "__parameters__", ()), get_args(base), strict=False))
            return arguments.get(parameter, parameter)
    raise TypeError(f"{cls.__qualname__} is not derived from {kind.__qualname__}")
