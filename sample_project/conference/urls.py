from __future__ import annotations

from django.urls import path, register_converter
from django.urls.converters import StringConverter

from enode_django.ids import check_id
from sample_project.conference import views


class Id(StringConverter):
    """Ids of aggregates. An invalid one is an address that does not exist."""

    regex = r"[\s\S]+"

    def to_python(self, value: str) -> str:
        return check_id(value)


register_converter(Id, "aggregate_id")

app_name = "conference"

urlpatterns = [
    path("", views.Conferences.as_view(), name="conferences"),
    path("open/", views.OpenConference.as_view(), name="open"),
    path("customers/", views.Customers.as_view(), name="customers"),
    path("customers/register/", views.Register.as_view(), name="register"),
    path("customers/<aggregate_id:customer>/order/", views.PlaceOrder.as_view(), name="place-order"),
    path("customers/<aggregate_id:customer>/", views.Customer.as_view(), name="customer"),
    path("orders/<aggregate_id:order>/pay/", views.Pay.as_view(), name="pay"),
    path("orders/<aggregate_id:order>/decline/", views.Decline.as_view(), name="decline"),
    path("orders/<aggregate_id:order>/", views.Order.as_view(), name="order"),
]
