from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("bank", "0002_tellers"),
    ]

    operations = [
        migrations.CreateModel(
            name="Payee",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("source", models.CharField(db_collation="C", max_length=255)),
                ("target", models.CharField(db_collation="C", max_length=255)),
                ("transfers", models.PositiveIntegerField(default=0)),
                ("last_at", models.DateTimeField()),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("source", "target"), name="bank_payee_accounts")],
            },
        ),
    ]
