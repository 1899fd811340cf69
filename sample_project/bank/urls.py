from __future__ import annotations

from django.urls import include, path
from rest_framework.routers import SimpleRouter

from sample_project.bank import api
from sample_project.bank.teller import views

app_name = "bank"

router = SimpleRouter()
router.register("accounts", api.Accounts, basename="api-account")

teller = [
    path("", views.Accounts.as_view(), name="accounts"),
    path("login/", views.Login.as_view(), name="login"),
    path("logout/", views.Logout.as_view(), name="logout"),
    path("open/", views.Open.as_view(), name="open"),
    path("accounts/<path:account>/deposit/", views.PayIn.as_view(), name="deposit"),
    path("accounts/<path:account>/withdraw/", views.PayOut.as_view(), name="withdraw"),
    path("accounts/<path:account>/transfer/", views.Transfer.as_view(), name="transfer"),
    path("accounts/<path:account>/close/", views.Close.as_view(), name="close"),
    path("accounts/<path:account>/", views.Account.as_view(), name="account"),
]

urlpatterns = [
    path("", views.Home.as_view(), name="home"),
    path("teller/", include(teller)),
    path("bank/", include(router.urls)),
]
