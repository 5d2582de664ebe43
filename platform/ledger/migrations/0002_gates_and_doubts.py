import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0001_initial"),
        ("ledger", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="inferencerequest",
            name="asked_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="inferencerequest",
            name="unknown_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name="aborttarget",
            name="abort",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="targets",
                to="ledger.abort",
            ),
        ),
        migrations.AlterField(
            model_name="aborttarget",
            name="request",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="ledger.inferencerequest",
            ),
        ),
        migrations.AlterField(
            model_name="choice",
            name="request",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="choices",
                to="ledger.inferencerequest",
            ),
        ),
        migrations.AlterField(
            model_name="inferencerequest",
            name="owner",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="requests",
                to="accounts.owner",
            ),
        ),
        migrations.AlterField(
            model_name="transition",
            name="request",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="transitions",
                to="ledger.inferencerequest",
            ),
        ),
        migrations.CreateModel(
            name="Fence",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("raised_at", models.DateTimeField()),
                ("lifted_at", models.DateTimeField(blank=True, null=True)),
                ("lifted_by", models.CharField(blank=True, default="", max_length=200)),
                (
                    "abort",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="fence",
                        to="ledger.abort",
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("lifted_at__isnull", True)),
                        fields=["raised_at"],
                        name="fence_standing",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Tombstone",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("client_id", models.CharField(max_length=128)),
                ("expires_at", models.DateTimeField()),
                (
                    "abort",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="tombstones",
                        to="ledger.abort",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="accounts.owner",
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
                "indexes": [
                    models.Index(
                        fields=["owner", "client_id", "expires_at"], name="tombstone_of_id"
                    ),
                    models.Index(fields=["expires_at"], name="tombstone_expiry"),
                ],
            },
        ),
    ]
