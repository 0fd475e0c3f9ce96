"""`kvferry lifecycle` on a real S3 server: shows, merges, writes, and drops no other rule."""

from __future__ import annotations

import json
from collections.abc import Iterator

import boto3
import pytest

from tests.cli.harness import environment, kvferry
from tests.support.s3_servers import S3Server, started

OTHERS = [
    {
        "ID": "logs",
        "Filter": {"Prefix": "logs/"},
        "Status": "Enabled",
        "Expiration": {"Days": 3},
    },
    {
        "ID": "everything, slowly",
        "Filter": {"Prefix": ""},
        "Status": "Disabled",
        "NoncurrentVersionExpiration": {"NoncurrentDays": 9},
    },
]


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    with started("moto") as server:
        yield server


@pytest.fixture
def client(moto):
    variables = moto.environment()
    made = boto3.client(
        "s3",
        endpoint_url=moto.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
    )
    made.delete_bucket_lifecycle(Bucket=moto.bucket)
    yield made
    made.close()


def rules_of(client, bucket: str) -> dict[str, dict]:
    found = client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    return {rule["ID"]: rule for rule in found}


@pytest.mark.usefixtures("client")
def test_a_bucket_without_rules_is_told_so(moto):
    done = kvferry("lifecycle", f"s3://{moto.bucket}/kv", env=environment(**moto.environment()))
    assert (done.status, done.err) == (0, "")
    assert done.out == "no rule touches this store: its objects are kept for ever\n"


def test_a_rule_is_shown_written_and_changed_and_no_other_is_lost(moto, client):
    env = environment(**moto.environment())
    client.put_bucket_lifecycle_configuration(
        Bucket=moto.bucket, LifecycleConfiguration={"Rules": OTHERS}
    )
    before = rules_of(client, moto.bucket)
    url = f"s3://{moto.bucket}/kv/cache"
    done = kvferry("lifecycle", url, "--days", "14", env=env)
    assert done.status == 0
    assert '"Days": 14' in done.out
    assert "nothing was written; add --apply" in done.out
    assert rules_of(client, moto.bucket) == before
    for days in ("14", "7"):
        done = kvferry("lifecycle", url, "--days", days, "--apply", env=env)
        assert done.status == 0, done.err
        after = rules_of(client, moto.bucket)
        own = after.pop("kvferry kv/cache")
        assert after == before
        assert own["Expiration"] == {"Days": int(days)}
        assert own["Filter"] == {"Prefix": "kv/cache/"}
    done = kvferry("lifecycle", url, "--json", env=env)
    shown = {rule["ID"] for rule in json.loads(done.out)["rules"]}
    assert shown == {"kvferry kv/cache", "everything, slowly"}
    done = kvferry("lifecycle", url, env=env)
    assert "1 more rules of the bucket are about other objects and stay" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("s3://bucket", "--days", "3"), "everything in the bucket"),
        (("file:///tmp/x",), "a directory has no lifecycle"),
        (("s3://bucket/p", "--days", "0"), "--days must be a whole number"),
        (("s3://bucket/p", "--days", "soon"), "--days must be a whole number"),
        (("s3://bucket/p", "--apply"), "--apply needs --days"),
    ],
)
def test_wrong_use_is_refused(arguments, said):
    done = kvferry("lifecycle", *arguments)
    assert done.status == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_missing_bucket_is_named(moto):
    done = kvferry("lifecycle", "s3://nowhere/p", env=environment(**moto.environment()))
    assert done.status == 1
    assert "'nowhere' does not exist" in done.err
