from django.db import migrations, models


def _unmanaged(name: str, verbose_name: str, plural: str, permissions: tuple[str, ...]) -> migrations.CreateModel:
    field = models.CharField("name", max_length=255, primary_key=True, serialize=False)
    options = {"verbose_name": verbose_name, "verbose_name_plural": plural, "managed": False}
    return migrations.CreateModel(name, [("name", field)], {**options, "default_permissions": permissions})


class Migration(migrations.Migration):
    dependencies = [("enode_django", "0008_projection_generations")]

    operations = [
        _unmanaged("Topic", "topic", "topics and queues", ("view", "change")),
        _unmanaged("Subscriber", "subscriber", "subscribers", ("view",)),
        migrations.AlterModelOptions("job", {"verbose_name": "job", "verbose_name_plural": "jobs"}),
        migrations.AlterModelOptions(
            "rebuild",
            {"default_permissions": ("view", "change"), "verbose_name": "rebuild", "verbose_name_plural": "rebuilds"},
        ),
    ]
