from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("enode_django", "0027_unique_values")]

    operations = [
        migrations.AddIndex(
            model_name="scheduledcommand",
            index=models.Index(
                fields=["command_id"], name="enode_scheduled_command", condition=models.Q(subscriber="")
            ),
        ),
    ]
