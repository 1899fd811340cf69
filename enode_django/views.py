"""A view for one class of commands: it shows the form, executes the command, and shows the outcome."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.contrib.auth.mixins import AccessMixin
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _
from django.views.decorators.cache import never_cache
from django.views.generic import FormView

from enode_django.bus.results import CommandResult, WaitFor
from enode_django.databases import without_atomic_requests
from enode_django.domain.messages import Command
from enode_django.exceptions import CommandTimeout, InvalidId, StoreUnavailable, TransportUnavailable
from enode_django.forms import CommandForm, command_form
from enode_django.ids import check_id
from enode_django.models import ReadModel
from enode_django.web.failures import status_of

__all__ = ["CommandView"]

if TYPE_CHECKING:
    FormBase = FormView[CommandForm]
else:  # generic for the type checker only
    FormBase = FormView

RETRY_AFTER = 5
_UNANSWERED = _("This was not answered in time. It may still be done: send it again to see. It will not be done twice.")
_UNFINISHED = _("This is done, but not everything shows it yet. Send it again to see. It will not be done twice.")
_UNREACHABLE = _("This cannot be taken at the moment. Send it again soon. It will not be done twice.")


@method_decorator(never_cache, name="dispatch")
class CommandView(AccessMixin, FormBase):
    """A form view for a ``command``, or for a ``form_class`` of `CommandForm`; ``fields`` are those of the form.

    The view is open to users who are logged in and have the permissions of ``permission_required``; override
    `has_permission` for other rules. The aggregate's id is the argument ``aggregate_url_kwarg`` of the URL; without it
    the command makes a new aggregate. With a ``model``, ``object`` is the aggregate's row (404 if there is none). With
    ``expects_version`` as well, the command is refused if the aggregate has changed since the page was shown.

    ``success_url`` may hold ``{aggregate_root_id}``. A form that is shown again has the status 200 if it is invalid,
    and that of `enode_django.web.failures.status_of` if the command failed (409 for most refusals).

    For example::

        class DepositView(CommandView):
            command = Deposit
            template_name = "bank/deposit.html"
            success_url = "/accounts/{aggregate_root_id}/"

        urlpatterns = [path("accounts/<str:aggregate_root_id>/deposit/", DepositView.as_view())]
    """

    command: type[Command] | None = None
    fields: Iterable[str] | None = None
    permission_required: str | Iterable[str] = ()
    aggregate_url_kwarg = "aggregate_root_id"
    model: type[ReadModel] | None = None
    expects_version = False
    wait_for = WaitFor.EXECUTED
    timeout: float | None = None
    object: Any = None
    result: CommandResult | None = None

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view without ``ATOMIC_REQUESTS``: a rollback of the request would not undo the command."""
        return without_atomic_requests(super().as_view(**initkwargs))

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not self.has_permission():
            return self.handle_no_permission()
        self.object = self.get_object()
        return super().dispatch(request, *args, **kwargs)

    def has_permission(self) -> bool:
        user, required = self.request.user, self.permission_required
        return user.is_authenticated and user.has_perms([required] if isinstance(required, str) else required)

    # -- the aggregate and the form -------------------------------------------------------------------------------

    def get_aggregate_root_id(self) -> str | None:
        id: str | None = self.kwargs.get(self.aggregate_url_kwarg)
        return id

    def get_object(self) -> Any:
        """Return the row of the form's aggregate; None without a ``model`` or an id in the URL. Raises Http404."""
        id = self.get_aggregate_root_id()
        if id is None:
            return None
        try:
            check_id(id)
        except InvalidId as error:
            raise Http404(str(error)) from error
        return get_object_or_404(self.model, pk=id) if self.model is not None else None

    def get_expected_version(self) -> int | None:
        if self.expects_version and self.object is None and self.model is None:
            raise ImproperlyConfigured(
                f"{type(self).__qualname__} expects a version, but has no model whose row tells it; name the model"
            )
        return self.object.version if self.expects_version and self.object is not None else None

    def get_command_values(self) -> dict[str, Any]:
        """Return the fields of the command that users do not enter, such as the user's id."""
        return {}

    def get_form_class(self) -> type[CommandForm]:
        if self.form_class is not None:
            return self.form_class
        if self.command is None:
            raise ImproperlyConfigured(f"{type(self).__qualname__} needs a command, or a form_class")
        return command_form(self.command, self.fields)

    def get_form_kwargs(self) -> dict[str, Any]:
        return {
            **super().get_form_kwargs(),
            "aggregate_root_id": self.get_aggregate_root_id(),
            "expected_version": self.get_expected_version(),
            "values": self.get_command_values(),
        }

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(**{"object": self.object, **context})

    # -- the outcome ----------------------------------------------------------------------------------------------

    def form_valid(self, form: CommandForm) -> HttpResponse:
        self._check_success_url()
        try:
            self.result = form.execute(wait_for=self.wait_for, timeout=self.timeout)
        except CommandTimeout as late:
            return self.command_late(form, late)
        except (TransportUnavailable, StoreUnavailable) as error:
            return self.queue_unreachable(form, error)
        if self.result is None:
            return self.command_failed(form)
        return self.command_parked(form, self.result) if self.result.parked else self.command_done(form, self.result)

    def _check_success_url(self) -> None:
        """Raise before the command takes effect: Django misses the address after that."""
        own = type(self)
        has_own_way = own.get_success_url is not CommandView.get_success_url
        if not (self.success_url or has_own_way or own.command_done is not CommandView.command_done):
            raise ImproperlyConfigured(
                f"{own.__qualname__} has no address to go to after its command, which was not sent; set success_url, "
                "or override get_success_url() or command_done()"
            )

    def command_done(self, form: CommandForm, result: CommandResult) -> HttpResponse:
        return HttpResponseRedirect(self.get_success_url())

    def command_parked(self, form: CommandForm, result: CommandResult) -> HttpResponse:
        """Answer as `command_done`. The command took effect, but subscribers that the view waited for have parked the
        aggregate (``result.parked``): override this to tell the user that pages will not show the effect for now."""
        return self.command_done(form, result)

    def get_success_url(self) -> str:
        assert self.result is not None
        return super().get_success_url().format(aggregate_root_id=quote(self.result.aggregate_root_id, safe=""))

    def command_failed(self, form: CommandForm) -> HttpResponse:
        """Show the form again with the command's error. ``form.result`` is the command's result."""
        assert form.result is not None
        assert form.result.error is not None
        return self._shown_again(form, status_of(form.result.error))

    def command_late(self, form: CommandForm, late: CommandTimeout) -> HttpResponse:
        """Show the form again. The command goes on; sending the form again asks for the outcome of the same command."""
        text = _UNANSWERED if late.executed is None else _UNFINISHED
        form.add_error(None, ValidationError(text, code="late"))
        return self._shown_again(form, 504)

    def queue_unreachable(self, form: CommandForm, error: TransportUnavailable | StoreUnavailable) -> HttpResponse:
        """Show the form again: the message queue, or without one the event store, is away. Sending the form again sends
        the same command."""
        form.add_error(None, ValidationError(_UNREACHABLE, code="unreachable"))
        response = self._shown_again(form, 503)
        response["Retry-After"] = str(RETRY_AFTER)
        return response

    def _shown_again(self, form: CommandForm, status: int) -> HttpResponse:
        return self.render_to_response(self.get_context_data(form=form), status=status)
