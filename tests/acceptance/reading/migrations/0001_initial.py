from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            name="Balance",
            fields=[
                (
                    "aggregate_root_id",
                    models.CharField(
                        db_collation="C",
                        max_length=255,
                        primary_key=True,
                        serialize=False,
                        verbose_name="aggregate root id",
                    ),
                ),
                ("version", models.BigIntegerField(default=0, editable=False, verbose_name="version")),
                ("balance", models.DecimalField(decimal_places=2, default=0, max_digits=20)),
                ("changes", models.IntegerField(default=0)),
            ],
            options={"abstract": False},
        ),
        migrations.CreateModel(
            name="Movement",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("account", models.CharField(max_length=255)),
                ("account_version", models.BigIntegerField()),
                ("balance", models.DecimalField(decimal_places=2, max_digits=20)),
            ],
            options={"indexes": [models.Index(fields=["account"], name="reading_movement_account")]},
        ),
    ]
