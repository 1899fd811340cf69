"""The stored fields of a class as texts, by which versions of it can be compared after the old code is gone.

A text is a Python expression of stored types, without names of classes: an enum or a ``Literal`` is its values,
``Enum('express', 'normal')``; a dataclass is its fields, ``Fields(street=str, floor=Default[int | None])``. Bounds are
left out, because stored values are read without them.
"""

from __future__ import annotations

import ast
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from enode_django.domain.aliases import without_aliases
from enode_django.domain.declarations import Declared, schema_of
from enode_django.domain.defaults import MISSING
from enode_django.domain.fields import Schema
from enode_django.domain.scalars import SCALARS, is_enum, is_literal

FieldTexts = Mapping[str, str]
"""Type texts by field; that of a field with a default is inside ``Default[…]``."""


def describe(cls: type[Declared]) -> dict[str, str]:
    """Return the type texts of a class. Raises `DefinitionError` for a field that cannot be stored."""
    return _fields(cls, schema_of(cls))


def type_of(text: str) -> str:
    """Return the text without ``Default[…]``."""
    return text.removeprefix("Default[").removesuffix("]") if has_default(text) else text


def has_default(text: str) -> bool:
    return text.startswith("Default[")


def _fields(owner: type, schema: Schema) -> dict[str, str]:
    hints = typing.get_type_hints(owner, include_extras=True)
    texts = {name: _text(without_aliases(hints[name])) for name in schema.names}
    return {
        name: text if schema.defaults[name] is MISSING else f"Default[{text}]" for name, text in sorted(texts.items())
    }


def _text(annotation: Any) -> str:
    """Return the text of an annotation that `enode_django.domain.fields.field_type` accepts."""
    if annotation in SCALARS:
        return "None" if annotation is type(None) else str(annotation.__name__)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _text(arguments[0])
    if origin in (typing.Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return f"{_text(inner)} | None"
    if is_literal(annotation):
        return _choice(arguments)
    if origin is not None:
        items = ", ".join("..." if argument is Ellipsis else _text(argument) for argument in arguments)
        return f"{origin.__name__}[{items or '()'}]"
    if is_enum(annotation):
        return _choice(member.value for member in typing.cast(type[Enum], annotation))
    fields = _fields(annotation, Schema(annotation))
    return f"Fields({', '.join(f'{name}={text}' for name, text in fields.items())})"


def _choice(values: Iterable[Any]) -> str:
    return f"Enum({', '.join(sorted(map(repr, values)))})"


# -- comparison -------------------------------------------------------------------------------------------------------


def unreadable(new: FieldTexts, old: FieldTexts) -> dict[str, str]:
    """Return the reasons, by name, why fields of ``new`` cannot be read from values stored by ``old``.

    A removed field is ignored. An added field needs a default.
    """
    found = {}
    for name, text in new.items():
        if name in old:
            if not reads(type_of(text), type_of(old[name])):
                found[name] = f"was {type_of(old[name])} and is {type_of(text)}"
        elif not has_default(text):
            found[name] = "is new and has no default"
    return found


def stores_the_same(new: str, old: str) -> bool:
    """Return True if values of both types are stored alike. Defaults, nested ones too, make no difference."""
    try:
        return ast.dump(_Bare().visit(_parsed(new))) == ast.dump(_Bare().visit(_parsed(old)))
    except SyntaxError:
        return new == old


class _Bare(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        return node.slice if isinstance(node.value, ast.Name) and node.value.id == "Default" else node


def reads(new: str, old: str) -> bool:
    """Return True if every stored value of the type ``old`` can be read as the type ``new``.

    A number can be read as the same type only, because a float cannot hold every int.
    """
    if new == old:
        return True
    try:
        return _reads(_parsed(new), _parsed(old))
    except SyntaxError:
        return False


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _reads(new: ast.expr, old: ast.expr) -> bool:
    if ast.dump(new) == ast.dump(old):
        return True
    if isinstance(new, ast.BinOp):  # X | None
        inner = old.left if isinstance(old, ast.BinOp) else old
        return _is_none(old) or _reads(new.left, inner)
    for kind, compare in _COMPARED.items():
        if isinstance(new, kind) and isinstance(old, kind):
            return compare(new, old)
    return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _containers(new: ast.Subscript, old: ast.Subscript) -> bool:
    items, others = _items(new), _items(old)
    return ast.dump(new.value) == ast.dump(old.value) and len(items) == len(others) and all(map(_reads, items, others))


def _items(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _calls(new: ast.Call, old: ast.Call) -> bool:
    if ast.dump(new.func) != ast.dump(old.func):
        return False
    if new.args or old.args:  # Enum(…)
        return {ast.dump(value) for value in old.args} <= {ast.dump(value) for value in new.args}
    return not unreadable(_keywords(new), _keywords(old))


def _keywords(node: ast.Call) -> FieldTexts:
    return {keyword.arg or "": ast.unparse(keyword.value) for keyword in node.keywords}


_COMPARED: dict[type[ast.expr], Callable[[Any, Any], bool]] = {ast.Subscript: _containers, ast.Call: _calls}
