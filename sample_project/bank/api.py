"""The HTTP API of accounts: reads use the read model, changes are commands.

An account's ETag is its version. A change with ``If-Match`` takes effect if the account still has that version. A
change with an ``Idempotency-Key`` takes effect once, however often it is sent.
"""

from __future__ import annotations

from typing import Any, cast

from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import ModelSerializer
from rest_framework.viewsets import ReadOnlyModelViewSet

from enode_django import WaitFor
from enode_django.serializers import (
    CommandResultSerializer,
    CommandSerializer,
    StrictJsonParser,
    command_id_of,
    etag_of,
    expected_version_of,
    receive,
)
from sample_project.bank.domain import CloseAccount, Deposit, OpenAccount, Withdraw
from sample_project.bank.models import AccountSummary
from sample_project.bank.projections import AccountSummaries
from sample_project.bank.tellers import SERVE

IF_MATCH = OpenApiParameter("If-Match", str, OpenApiParameter.HEADER, description='The ETag seen, such as "3".')
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key", str, OpenApiParameter.HEADER, description="One for each change; it makes the id of its command."
)
SHOWN = WaitFor.subscriber(AccountSummaries)
ANSWERS: dict[int, Any] = {
    200: CommandResultSerializer,
    **dict.fromkeys((400, 401, 403, 404, 409, 412, 413, 415, 422, 503, 504), OpenApiTypes.OBJECT),
}
REFUSED = dict.fromkeys((401, 403, 404), OpenApiTypes.OBJECT)


class OpenSerializer(CommandSerializer):
    class Meta:
        command = OpenAccount


class DepositSerializer(CommandSerializer):
    class Meta:
        command = Deposit


class WithdrawSerializer(CommandSerializer):
    class Meta:
        command = Withdraw


class CloseSerializer(CommandSerializer):
    class Meta:
        command = CloseAccount


class AccountSerializer(ModelSerializer[AccountSummary]):
    class Meta:
        model = AccountSummary
        fields = ("aggregate_root_id", "version", "owner", "balance", "available", "opened_at", "closed")


class ByNumber(CursorPagination):
    page_size = 50
    ordering = "aggregate_root_id"

    def decode_cursor(self, request: Request) -> Any:
        cursor = super().decode_cursor(request)
        if cursor is not None and "\0" in str(cursor.position or ""):  # PostgreSQL refuses it
            raise NotFound(self.invalid_cursor_message)
        return cursor


class IsTeller(BasePermission):
    def has_permission(self, request: Request, view: Any) -> bool:
        return request.user.has_perm(SERVE)  # pyright: ignore[reportAttributeAccessIssue]  # AUTH_USER_MODEL


@extend_schema_view(
    list=extend_schema(summary="The accounts", responses={200: AccountSerializer(many=True), **REFUSED}),
    retrieve=extend_schema(summary="One account", responses={200: AccountSerializer, 304: None, **REFUSED}),
)
class Accounts(ReadOnlyModelViewSet[AccountSummary]):
    queryset = AccountSummary.objects.all()
    serializer_class = AccountSerializer
    pagination_class = ByNumber
    permission_classes = (IsAuthenticated, IsTeller)
    parser_classes = (StrictJsonParser, FormParser, MultiPartParser)
    lookup_value_regex = r"[^/\x00]+"

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        account = self.get_object()
        etag = etag_of(account.version)
        response = Response(self.get_serializer(account).data, headers={"ETag": etag})
        return get_conditional_response(request, etag=etag, response=response)

    @extend_schema(summary="Open an account", parameters=[IDEMPOTENCY_KEY], responses=ANSWERS)
    @action(detail=False, methods=["post"], serializer_class=OpenSerializer)
    def open(self, request: Request) -> HttpResponseBase:
        return self._execute(request)

    @extend_schema(summary="Pay money in", parameters=[IF_MATCH, IDEMPOTENCY_KEY], responses=ANSWERS)
    @action(detail=True, methods=["post"], serializer_class=DepositSerializer)
    def deposit(self, request: Request, pk: str) -> HttpResponseBase:
        return self._execute(request, aggregate_root_id=pk)

    @extend_schema(summary="Pay money out", parameters=[IF_MATCH, IDEMPOTENCY_KEY], responses=ANSWERS)
    @action(detail=True, methods=["post"], serializer_class=WithdrawSerializer)
    def withdraw(self, request: Request, pk: str) -> HttpResponseBase:
        return self._execute(request, aggregate_root_id=pk)

    @extend_schema(summary="Close an account", parameters=[IF_MATCH, IDEMPOTENCY_KEY], responses=ANSWERS)
    @action(detail=True, methods=["post"], serializer_class=CloseSerializer)
    def close(self, request: Request, pk: str) -> HttpResponseBase:
        return self._execute(request, aggregate_root_id=pk)

    def _execute(self, request: Request, **values: str) -> Response:
        serializer = cast(Any, self.get_serializer(data=request.data))
        serializer.is_valid(raise_exception=True)
        version, user = expected_version_of(request), str(request.user.pk)
        id = command_id_of(request.headers.get("Idempotency-Key"), user)
        if id is not None:
            values = {"aggregate_root_id": id, **values, "id": id}  # a repeated opening opens the same account
            content = {name: str(value) for name, value in serializer.validated_data.items()}
            receive(serializer.command(**values), [request.path, content, version], user)
        result = serializer.save(expected_version=version, wait_for=SHOWN, **values)
        return Response(serializer.data, headers={"ETag": etag_of(result.version)})
