"""The message of an error, read from its text with the traceback."""

from __future__ import annotations

import traceback

import pytest

from enode_django.jobs.error_texts import in_one_line, message_of


class Overflow(Exception):
    pass


def text_of(error: Exception, cause: Exception | None = None) -> str:
    try:
        raise error from _raised(cause)
    except Exception as raised:
        return "".join(traceback.format_exception(raised))


def _raised(cause: Exception | None) -> Exception | None:
    try:
        raise cause or Exception
    except Exception as raised:
        return cause and raised


DETAILED = "numeric field overflow\nDETAIL:  A field with precision 8"


def test_the_message_is_whole_and_its_class_is_named() -> None:
    text = text_of(Overflow(DETAILED), ValueError("the cause"))
    assert message_of(text) == f"{__name__}.Overflow: {DETAILED}"
    assert in_one_line(text) == "Overflow: numeric field overflow"


def test_a_traceback_whose_beginning_was_cut_off_has_the_same_message() -> None:
    text = text_of(Overflow(DETAILED), ValueError("the cause"))
    assert message_of(text[text.index("line") :]) == message_of(text)


def test_of_a_group_the_group_is_named() -> None:
    group = ExceptionGroup("both", [ValueError(1), KeyError(2)])
    assert in_one_line(text_of(group)) == "ExceptionGroup: both (2 sub-exceptions)"


@pytest.mark.parametrize(
    ("text", "line"), [("", ""), ("no amount\n", "no amount"), ("Traceback\n  File x\nValueError", "ValueError")]
)
def test_other_texts_stay(text: str, line: str) -> None:
    assert in_one_line(text) == line
