"""The functions that the page on personal data shows to seal texts, with a cipher of the standard library."""

from __future__ import annotations

import ast
import hashlib
import secrets
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, models, transaction
from django.test.utils import isolate_apps

from tests.docs.blocks import blocks
from tests.docs.pages import DOCS

PAGE = DOCS / "howto" / "personal-data.md"
NONCE = 16


class Fernet:
    """Has the interface of the class of this name in ``cryptography``, and seals up to 32 bytes."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError("a key has 32 bytes")
        self._key = key

    @staticmethod
    def generate_key() -> bytes:
        return secrets.token_bytes(32)

    def encrypt(self, text: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE)
        return nonce + self._mixed(nonce, text)

    def decrypt(self, sealed: bytes) -> bytes:
        return self._mixed(sealed[:NONCE], sealed[NONCE:])

    def _mixed(self, nonce: bytes, text: bytes) -> bytes:
        stream = hashlib.sha256(self._key + nonce).digest()
        return bytes(one ^ other for one, other in zip(text, stream, strict=False))


@pytest.fixture
def page(transactional_db: None) -> Iterator[Any]:
    """Yield the page's functions and the model of the keys, whose table exists during the test."""
    with isolate_apps("tests.docs"):

        class PersonKey(models.Model):
            person = models.CharField(primary_key=True, max_length=36)
            key = models.BinaryField()

            class Meta:
                app_label = "docs"

    with connection.schema_editor() as editor:
        editor.create_model(PersonKey)
    yield SimpleNamespace(**functions({"PersonKey": PersonKey, "Fernet": Fernet, "transaction": transaction}))
    with connection.schema_editor() as editor:
        editor.delete_model(PersonKey)


def functions(names: dict[str, Any]) -> dict[str, Any]:
    """Return the functions of the block that seals, and the names that they use."""
    (block,) = (block for block in blocks(PAGE) if "def unseal(" in block.text)
    shown = [node for node in ast.parse(block.text).body if isinstance(node, ast.FunctionDef)]
    exec(compile(ast.Module(shown, []), str(PAGE), "exec"), names)
    return names


def test_who_was_forgotten_cannot_be_unsealed_and_gets_no_other_key(page: Any) -> None:
    sealed = page.seal("ada", "Main Street 1")
    assert page.unseal("ada", sealed) == "Main Street 1"
    page.forget("ada")
    page.forget("ada")
    assert page.unseal("ada", sealed) is None
    with pytest.raises(ValueError, match="32 bytes"):
        page.seal("ada", "Main Street 2")
    page.forget("bob")
    with pytest.raises(ValueError, match="32 bytes"):
        page.seal("bob", "sealed by a command that comes after the deletion")


def test_no_key_is_made_in_a_transaction_that_may_be_rolled_back(page: Any) -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        page.seal("ada", "Main Street 1")
    assert not page.PersonKey.objects.exists()
