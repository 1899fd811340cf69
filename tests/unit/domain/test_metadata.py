from __future__ import annotations

from typing import Any

import pytest

from enode_django.domain.metadata import EMPTY, Metadata, current_metadata, metadata
from enode_django.exceptions import InvalidField
from enode_django.serialization.codec import decode_metadata, encode_metadata
from enode_django.serialization.plain import pack


@pytest.mark.parametrize("name", ["user_id", "request", "correlation_id", "causation_id"])
def test_named_metadata_that_is_no_string_is_refused_with_its_name(name: str) -> None:
    given: dict[str, Any] = {name: 17}
    with pytest.raises(InvalidField, match=rf"metadata {name}=17 is not a string; pass str"), metadata(**given):
        pytest.fail("the block has been entered")
    assert current_metadata() is EMPTY
    with pytest.raises(InvalidField, match=rf"metadata {name}=17 is not a string"):
        Metadata(**given)


def test_metadata_of_an_enclosing_block_holds_where_none_is_given() -> None:
    with metadata(user_id="ada", shop=7), metadata(user_id=None, request="r1"):
        assert current_metadata() == Metadata(user_id="ada", request="r1", extra={"shop": 7})


def test_the_earlier_name_of_the_users_id_is_taken_and_read() -> None:
    with metadata(user="ada") as inner, metadata(request="r1"):
        assert inner.user == inner.user_id == current_metadata().user_id == "ada"
    with (
        pytest.raises(InvalidField, match="user='ada' is the earlier name of user_id='bob'"),
        metadata(user="ada", user_id="bob"),
    ):
        pytest.fail("the block has been entered")


def test_the_users_id_is_stored_by_the_key_that_it_always_had() -> None:
    assert Metadata(user_id="17", extra={"shop": 7}).as_map() == {"user": "17", "shop": 7}


def test_stored_metadata_stays_readable_whatever_is_in_it() -> None:
    assert decode_metadata(pack({"user": 17, "request": None, "shop": 7})) == Metadata(user_id="17", extra={"shop": 7})


def test_metadata_that_cannot_be_stored_is_refused_with_its_key() -> None:
    with (
        metadata(user_id="ada", shop=7, basket=[object()]),
        pytest.raises(InvalidField, match=r"metadata basket=\[<obj"),
    ):
        encode_metadata(current_metadata())
    with pytest.raises(InvalidField, match="metadata user="):
        encode_metadata(Metadata(user_id="\ud800"))


def test_the_deepest_metadata_that_are_accepted_can_be_read_again() -> None:
    value: list[object] = []
    stored = b""
    with pytest.raises(InvalidField, match=r"metadata tree="):  # noqa: PT012  (the depth is the library's)
        while True:
            stored = encode_metadata(Metadata(extra={"tree": value}))
            value = [value]
    assert len(stored) > 1_000
    assert decode_metadata(stored).extra["tree"]
