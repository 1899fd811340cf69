"""Parse JSON as strictly as RFC 8259 advises: UTF-8, unique keys, no NaN, and at most ``MAX_BODY`` bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from enode_django.api.problems import Problem
from enode_django.conf import conf
from enode_django.serialization.strict_json import strict_json


class StrictJsonParser(BaseParser):
    """Parses a JSON object. A body that is too large is not read to its end.

    For example::

        class DepositView(APIView):
            parser_classes = [StrictJsonParser]

        assert StrictJsonParser().parse(BytesIO(b'{"amount": "5"}')) == {"amount": "5"}
    """

    media_type = "application/json"

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        most = int(conf().API.MAX_BODY)
        _check_announced((parser_context or {}).get("request"), most)
        body = stream.read(most + 1)
        if len(body) > most:
            raise too_large(most)
        return parse(body)


def _check_announced(request: Any, most: int) -> None:
    announced = str(request.META.get("CONTENT_LENGTH") or "") if request is not None else ""
    if announced.isascii() and announced.isdigit() and (len(announced) > 18 or int(announced) > most):
        raise too_large(most)


def too_large(most: int) -> Problem:
    return Problem(413, f"the body is larger than {most} bytes", kind="enode:too-large", members={"max_bytes": most})


def parse(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises `ParseError`."""
    try:
        value = strict_json(body.decode())
    except UnicodeDecodeError:
        raise ParseError("the body is not in UTF-8") from None
    except RecursionError:
        raise ParseError("the body is nested too deeply") from None
    except ValueError as error:  # also for numbers with too many digits
        raise ParseError(f"the body is not JSON: {error}") from None
    if type(value) is not dict:
        raise ParseError("the body is not a JSON object; send {…}")
    return value
