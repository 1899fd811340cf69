import django.core.serializers.json
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0006_shards"),
    ]

    operations = [
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(max_length=50, verbose_name="kind")),
                (
                    "name",
                    models.CharField(
                        help_text="What it works on: one at a time of each kind.", max_length=500, verbose_name="name"
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("running", "Running"),
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                        ],
                        default="running",
                        max_length=20,
                        verbose_name="state",
                    ),
                ),
                (
                    "progress",
                    models.JSONField(
                        default=dict, encoder=django.core.serializers.json.DjangoJSONEncoder, verbose_name="progress"
                    ),
                ),
                (
                    "figures",
                    models.JSONField(
                        default=dict, encoder=django.core.serializers.json.DjangoJSONEncoder, verbose_name="figures"
                    ),
                ),
                (
                    "error",
                    models.TextField(blank=True, default="", help_text="With its traceback.", verbose_name="error"),
                ),
                (
                    "owner",
                    models.UUIDField(
                        help_text="Of this run alone: a row that has another one was taken over.", verbose_name="owner"
                    ),
                ),
                ("lease_until", models.DateTimeField(verbose_name="lease until")),
                (
                    "cancel_requested_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="cancel requested at"),
                ),
                (
                    "task_id",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Celery's, if one runs it.",
                        max_length=255,
                        verbose_name="task id",
                    ),
                ),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished at")),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "default_permissions": ("view", "change"),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("state", "running")), fields=("kind", "name"), name="enode_job_running"
                    )
                ],
            },
        ),
    ]
