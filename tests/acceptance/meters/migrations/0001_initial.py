from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            name="Reading",
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
                ("watt_hours", models.BigIntegerField(default=0)),
                ("changes", models.IntegerField(default=0)),
            ],
            options={"abstract": False},
        ),
    ]
