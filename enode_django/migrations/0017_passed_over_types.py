from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("enode_django", "0016_parked_retries"),
    ]

    operations = [
        migrations.AddField(
            model_name="subscription",
            name="passed_over",
            field=models.JSONField(
                db_default={},
                help_text="Types of aggregates that were unknown, and the positions from where on.",
                verbose_name="passed over",
            ),
        ),
    ]
