from __future__ import annotations

from django.db import migrations, models


def key() -> models.BigAutoField:
    return models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            name="Remark",
            fields=[("id", key()), ("account", models.CharField(max_length=255)), ("text", models.TextField())],
        ),
        migrations.CreateModel(
            name="Page",
            fields=[
                ("id", key()),
                ("account", models.CharField(max_length=255)),
                ("amount", models.DecimalField(decimal_places=2, max_digits=20)),
            ],
        ),
        migrations.CreateModel(
            name="Cover",
            fields=[
                ("id", key()),
                ("account", models.CharField(max_length=255, unique=True)),
                ("pages", models.IntegerField(default=0)),
            ],
        ),
    ]
