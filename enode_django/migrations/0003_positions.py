import django.contrib.postgres.indexes
import django.db.models.functions.comparison
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0002_subscribers"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="eventstream",
            index=django.contrib.postgres.indexes.BrinIndex(
                django.db.models.functions.comparison.Cast(
                    django.db.models.functions.comparison.Cast("transaction_id", models.TextField()),
                    models.BigIntegerField(),
                ),
                autosummarize=True,
                name="enode_stream_position",
                pages_per_range=512,
            ),
        ),
    ]
