"""`kvferry lifecycle` on real servers: written, read back, changed, and no other rule lost."""

from __future__ import annotations

import json

import pytest

from tests.cli.harness import environment, kvferry
from tests.support.s3_servers import started

pytestmark = pytest.mark.matrix

LOGS = {"ID": "logs", "Filter": {"Prefix": "logs/"}, "Status": "Enabled", "Expiration": {"Days": 3}}


@pytest.mark.parametrize("name", ["ceph", "seaweedfs"])
def test_a_rule_is_written_and_changed_and_no_other_is_lost(name):
    with started(name) as server:
        client = server.client()
        env = environment(**server.environment())
        url = f"s3://{server.bucket}/kv"
        done = kvferry("lifecycle", url, env=env)
        assert (done.status, done.err) == (0, "")
        assert "no rule touches this store" in done.out
        client.put_bucket_lifecycle_configuration(
            Bucket=server.bucket, LifecycleConfiguration={"Rules": [LOGS]}
        )
        for days in ("14", "7"):
            done = kvferry("lifecycle", url, "--days", days, "--apply", env=env)
            assert done.status == 0, done.err
            found = client.get_bucket_lifecycle_configuration(Bucket=server.bucket)["Rules"]
            rules = {rule["ID"]: rule for rule in found}
            assert rules["kvferry kv"]["Expiration"]["Days"] == int(days)
            assert rules["kvferry kv"]["Filter"]["Prefix"] == "kv/"
            assert rules["logs"]["Expiration"]["Days"] == 3
            assert set(rules) == {"kvferry kv", "logs"}
        shown = json.loads(kvferry("lifecycle", url, "--json", env=env).out)["rules"]
        assert [rule["ID"] for rule in shown] == ["kvferry kv"]
        client.close()


@pytest.mark.parametrize("name", ["juicefs", "rclone", "localbucket"])
def test_a_server_without_lifecycle_rules_is_named(name):
    with started(name) as server:
        done = kvferry(
            *("lifecycle", f"s3://{server.bucket}/kv", "--days", "14", "--apply"),
            env=environment(**server.environment()),
        )
        assert done.status == 1
        assert done.err.count("\n") == 1
        assert "this server has no lifecycle rules" in done.err
