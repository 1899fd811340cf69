from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0020_rebuild_corrections"),
    ]

    operations = [
        migrations.AddField(
            model_name="subscription",
            name="event_types",
            field=models.JSONField(
                db_default={},
                help_text="Those that its code has known, and whether it handles them.",
                verbose_name="event types",
            ),
        ),
    ]
