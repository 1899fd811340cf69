from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("enode_django", "0028_scheduled_command_ids")]

    operations = [
        migrations.AddField(
            model_name="subscription",
            name="fingerprint",
            field=models.CharField(
                "fingerprint",
                max_length=100,
                null=True,
                db_collation="C",
                help_text="Of the handlers' code of a projection when it began; a rebuild keeps its own.",
            ),
        ),
    ]
