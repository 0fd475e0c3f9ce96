"""AWS's defaults: its own host names, https, the bucket in the host name, no endpoint or bundle.

moto plays AWS, in a network of its own in which AWS's names lead to it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.harness import environment, works
from tests.support.certificates import self_signed_certificate
from tests.support.processes import find_binary

HOST = "s3.eu-central-1.amazonaws.com"
BUCKET = "kvferry-test"
BOX = ("bwrap", "--dev-bind", "/", "/", "--unshare-net", "--cap-add", "CAP_NET_BIND_SERVICE")
PROGRAM = """
import boto3, socket, subprocess, sys, time
from botocore.config import Config

host, bucket, certificate, key, moto = sys.argv[1:]
server = subprocess.Popen(
    [moto, "-H", "127.0.0.1", "-p", "443", "-c", certificate, "-k", key],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
try:
    for _ in range(300):
        time.sleep(0.1)
        with socket.socket() as there:
            if there.connect_ex(("127.0.0.1", 443)) == 0:
                break
    s3 = boto3.client(
        "s3", endpoint_url=f"https://{host}", verify=certificate,
        config=Config(s3={"addressing_style": "path"}),
    )
    s3.create_bucket(
        Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
    )
    command = [sys.executable, "-m", "kvferry_server.cli", "check", f"s3://{bucket}/kv"]
    status = subprocess.run(command).returncode
finally:
    server.terminate()
    server.wait()
sys.exit(status)
"""


@pytest.mark.skipif(not works([*BOX, "true"]), reason="bubblewrap can't make a network here")
def test_a_bucket_at_awss_own_names_needs_no_setting_but_region_and_keys(tmp_path: Path):
    certificate, key = self_signed_certificate("127.0.0.1", HOST, f"*.{HOST}")
    (tmp_path / "certificate.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost {HOST} {BUCKET}.{HOST}\n")
    moto = find_binary("moto_server")
    assert moto
    done = subprocess.run(
        [
            *BOX,
            "--bind",
            str(tmp_path / "hosts"),
            "/etc/hosts",
            *(sys.executable, "-c", PROGRAM, HOST, BUCKET),
            *(str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem"), moto),
        ],
        env=environment(
            AWS_ACCESS_KEY_ID="access",
            AWS_SECRET_ACCESS_KEY="secret",
            AWS_REGION="eu-central-1",
            SSL_CERT_FILE=str(tmp_path / "certificate.pem"),
        ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("ready: virtual addressing, checksum supported\n")
