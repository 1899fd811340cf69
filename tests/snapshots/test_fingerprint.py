"""A snapshot is used by the code that made it, and by no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from enode_django.exceptions import DefinitionError
from enode_django.repository.fingerprint import compute_fingerprint
from enode_django.repository.sources import Source, source_of
from tests.meta.tree import ROOT
from tests.snapshots.conftest import Define

CART = '''
LIMIT = 10
RATES = {"EUR": 1}

class Color(enum.Enum):
    RED = 1
    BLUE = 2

@dataclasses.dataclass(frozen=True)
class Money:
    amount: int

    def __add__(self, other):
        return Money(self.amount + other.amount)

class Base(AggregateRoot):
    type_name = "shop.Base"

    def _note(self, event):
        self.notes += 1

def rounded(value):
    return value // 2

class Added(DomainEvent):
    type_name = "shop.Added"
    schema_version = 2
    amount: int

    @property
    def doubled(self):
        return self.amount * 2

@upcasts(Added, from_version=1)
def with_amount(fields):
    return {**fields, "amount": 1}

class Emptied(DomainEvent):
    type_name = "shop.Emptied"

class Cart(Base):
    type_name = "shop.Cart"
    factor = 3
    total: int = 0
    notes: int = 0
    money: Money = Money(0)
    color: Color = Color.RED
    items: dict[str, int] = {}

    def add(self, amount):
        if amount > 100:
            raise ValueError("too much")
        self.apply(Added(amount=amount))

    @applies(Added)
    def _added(self, event):
        """What was added."""
        self.total = min(self.total + rounded(event.doubled) * self.factor, LIMIT * RATES["EUR"])
        self._count()

    def _count(self):
        self._note(None)

    @applies(Emptied)
    def _emptied(self, event):
        self.items = {key: 0 for key in self.items}
'''

HARMLESS = {
    "comment": ("    def add(self, amount):", "    # what is added\n    def add(self, amount):"),
    "comment in an applier": ("        self._count()\n", "        # one more\n        self._count()\n"),
    "docstring": ('"""What was added."""', '"""Something else, and much longer than it was."""'),
    "no docstring": ('        """What was added."""\n', ""),
    "lines moved": ("def rounded", "\n\n\n\ndef rounded"),
    "line broken": ("self.total + rounded(event.doubled)", "self.total\n            + rounded(event.doubled)"),
    "a rule that no applier uses": ("if amount > 100:", "if amount > 200:"),
    "another method": ("    def add(self", "    def other(self):\n        return 7\n\n    def add(self"),
    "another class": ("def rounded", "class Stranger(AggregateRoot):\n    type_name = 'shop.S'\n\ndef rounded"),
    "another event": ("def rounded", "class Strange(DomainEvent):\n    type_name = 'shop.E'\n\ndef rounded"),
    "another constant": ("LIMIT = 10", "LIMIT = 10\nOTHER = 11"),
    "the same type otherwise": ("items: dict[str, int]", "items: 'dict[str, int]'"),
}

HARMFUL = {
    "an applier": ("key: 0 for key", "key: 1 for key"),
    "an applier's operator": ("min(self.total + ", "min(self.total - "),
    "a method that an applier calls": ("self._note(None)", "self._note(1)"),
    "a method of the base": ("self.notes += 1", "self.notes += 2"),
    "a function that an applier calls": ("return value // 2", "return value // 3"),
    "a constant": ("LIMIT = 10", "LIMIT = 20"),
    "a table": ('RATES = {"EUR": 1}', 'RATES = {"EUR": 2}'),
    "an attribute of the class": ("factor = 3", "factor = 4"),
    "a property of an event": ("return self.amount * 2", "return self.amount * 3"),
    "an operator of a value": ("self.amount + other.amount", "self.amount - other.amount"),
    "a value's field": ("class Money:\n    amount: int", "class Money:\n    amount: int\n    currency: str = ''"),
    "a member of an enum": ("BLUE = 2", "BLUE = 3"),
    "a field's type": ("items: dict[str, int]", "items: dict[str, bool]"),
    "a field's default": ("notes: int = 0", "notes: int = 1"),
    "a mutable default": ("items: dict[str, int] = {}", "items: dict[str, int] = {'a': 1}"),
    "a field less": ("    color: Color = Color.RED\n", ""),
    "a field more": ("    notes: int", "    more: int = 0\n    notes: int"),
    "an event's field": ("    amount: int\n\n    @property", "    amount: int\n    by: str = ''\n\n    @property"),
    "a schema version": ("schema_version = 2", "schema_version = 3"),
    "an upcaster": ('"amount": 1}', '"amount": 2}'),
    "no upcaster": ("@upcasts(Added, from_version=1)\n", ""),
    "a hook": (
        "    def add(self, amount)",
        "    def snapshot(self): return 1\n    def restore(self, plain): pass\n    def add(self, amount)",
    ),
    "a constructor": (
        "    def add(self, amount)",
        "    def __init__(self, id):\n        super().__init__(id)\n        self.total = 5\n    def add(self, amount)",
    ),
    "another applier": ("@applies(Emptied)", "@applies(Emptied)\n    def _x(self, event): pass\n\n    "),
}


@pytest.mark.parametrize("is_readable", [True, False], ids=["with source", "without"])
@pytest.mark.parametrize("change", HARMLESS)
def test_what_makes_no_other_state_makes_no_other_fingerprint(define: Define, change: str, is_readable: bool) -> None:
    old, new = HARMLESS[change]
    assert CART.count(old) == 1
    one = compute_fingerprint(define(CART, is_readable=is_readable))
    assert compute_fingerprint(define(CART.replace(old, new), is_readable=is_readable)) == one


@pytest.mark.parametrize("is_readable", [True, False], ids=["with source", "without"])
@pytest.mark.parametrize("change", HARMFUL)
def test_what_may_make_another_state_makes_another_fingerprint(define: Define, change: str, is_readable: bool) -> None:
    old, new = HARMFUL[change]
    assert CART.count(old) == 1
    one = compute_fingerprint(define(CART, is_readable=is_readable))
    assert compute_fingerprint(define(CART.replace(old, new), is_readable=is_readable)) != one


def test_code_without_a_source_has_another_fingerprint_in_each_version_of_python(
    define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for tag in ("cpython-311", "cpython-399"):
        monkeypatch.setattr(sys.implementation, "cache_tag", tag)
        found.append([compute_fingerprint(define(CART, is_readable=readable)) for readable in (True, False)])
    (readable, unreadable), (readable_later, unreadable_later) = found
    assert readable == readable_later
    assert unreadable != unreadable_later


def test_what_stands_in_a_mutable_default_matters(define: Define) -> None:
    declared = "items: dict[str, int] = {'a': %d}"
    carts = [CART.replace("items: dict[str, int] = {}", declared % amount) for amount in (1, 2, 1)]
    one, other, again = (compute_fingerprint(define(cart)) for cart in carts)
    assert one != other
    assert one == again


def test_the_place_of_the_file_does_not_matter(define: Define) -> None:
    one = compute_fingerprint(define(CART, path="/here/domain.py"))
    assert compute_fingerprint(define(CART, path="/somewhere/else/domain.py")) == one


DECORATED = """
def counted(method):
    calls = {}

    @wraps(method)
    def wrapper(self, event):
        calls[event.id] = True
        return method(self, event)

    return wrapper

class Added(DomainEvent):
    type_name = "shop.Added"

class Cart(AggregateRoot):
    type_name = "shop.Cart"
    total: int = 0

    @applies(Added)
    @counted
    def _added(self, event):
        self.total += 1
"""


def test_behind_a_decorator_the_applier_is_seen(define: Define) -> None:
    one = compute_fingerprint(define(DECORATED))
    assert compute_fingerprint(define(DECORATED.replace("+= 1", "+= 2"))) != one
    assert compute_fingerprint(define(DECORATED.replace("= True", "= False"))) != one


def test_what_happened_in_the_process_does_not_matter(define: Define) -> None:
    cart = define(DECORATED)
    one = compute_fingerprint(cart)
    aggregate = cart("a")
    aggregate.apply(sys.modules["shop.domain"].Added())
    assert aggregate.total == 1
    assert compute_fingerprint(cart) == one


def test_functions_that_call_each_other_come_to_an_end(define: Define) -> None:
    source = DECORATED + "def one(x):\n    return two(x)\n\ndef two(x):\n    return one(x)\n"
    source = source.replace("self.total += 1", "self.total += one(1)")
    one = compute_fingerprint(define(source))
    assert compute_fingerprint(define(source.replace("return one(x)", "return one(x + 1)"))) != one


def test_a_subclass_of_an_event_that_is_applied_counts(define: Define) -> None:
    source = DECORATED.replace("class Cart", 'class More(Added):\n    type_name = "shop.More"\n\nclass Cart')
    one = compute_fingerprint(define(source))
    assert one != compute_fingerprint(define(source.replace('"shop.More"', '"shop.More"\n    schema_version = 2')))


def test_a_renamed_class_of_events_is_the_same(define: Define) -> None:
    renamed = DECORATED.replace('"shop.Added"', '"shop.Plus"\n    aliases = ("shop.Added",)')
    assert compute_fingerprint(define(DECORATED)) == compute_fingerprint(define(renamed))


SHOW = """
import django
django.setup()
from enode_django.serialization.registry import types
from enode_django.domain.aggregate import AggregateRoot
from enode_django.repository.fingerprint import fingerprint_of
print(fingerprint_of(types.class_of(AggregateRoot, "bank.BankAccount")))
"""


def test_it_is_the_same_in_all_processes() -> None:
    from sample_project.bank.domain import BankAccount

    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "DJANGO_SETTINGS_MODULE": "sample_project.settings"}
    command = [sys.executable, "-c", SHOW]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == compute_fingerprint(BankAccount)


ASSERTING = """
LIMIT = 5

def apply(self, event):
    'Add the amount.'
    assert event.amount < LIMIT, event.text
    self.total += event.amount
"""


@pytest.mark.parametrize("optimize", [1, 2], ids=["-O", "-OO"])
def test_it_is_the_same_if_python_leaves_out_assertions_and_docstrings(tmp_path: Path, optimize: int) -> None:
    (path := tmp_path / "asserting.py").write_text(ASSERTING)

    def source(level: int) -> Source | None:
        names: dict[str, Any] = {}
        exec(compile(ASSERTING, str(path), "exec", dont_inherit=True, optimize=level), names)
        return source_of(names["apply"])

    assert source(optimize) == source(0) is not None


def test_a_policy_that_is_none_is_refused(define: Define) -> None:
    for wrong in ("-1", "True", "'often'", "1.5"):
        with pytest.raises(DefinitionError, match="snapshot_every"):
            define(DECORATED.replace("total: int = 0", f"total: int = 0\n    snapshot_every = {wrong}"))
    with pytest.raises(DefinitionError, match="the field 'snapshot_every', but that is a setting"):
        define(DECORATED.replace("total: int = 0", "total: int = 0\n    snapshot_every: int = 5"))


def test_a_method_that_is_called_like_a_hook_by_chance_is_refused(define: Define) -> None:
    with pytest.raises(DefinitionError, match=r"defines restore\(\) without snapshot\(\)"):
        define(DECORATED + "\n    def restore(self): pass\n")
