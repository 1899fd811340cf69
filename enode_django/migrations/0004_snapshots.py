from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0003_positions"),
    ]

    operations = [
        migrations.CreateModel(
            name="Snapshot",
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
                (
                    "aggregate_root_type",
                    models.CharField(db_collation="C", max_length=255, verbose_name="aggregate root type"),
                ),
                ("version", models.BigIntegerField(verbose_name="version")),
                ("fingerprint", models.CharField(db_collation="C", max_length=32, verbose_name="fingerprint")),
                ("payload", models.BinaryField(verbose_name="payload")),
                ("created_at", models.DateTimeField(verbose_name="created at")),
            ],
            options={
                "verbose_name": "snapshot",
                "verbose_name_plural": "snapshots",
                "default_permissions": ("view",),
            },
        ),
    ]
