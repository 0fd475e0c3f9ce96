"""Ceph RGW on loopback: one mon, one in-memory OSD, one gateway, all on ports of their own."""

from __future__ import annotations

from .s3_servers import S3Server


class CephRGW(S3Server):
    """Ceph's S3 gateway."""

    name = "ceph"
    programs = ("ceph-mon", "ceph-osd", "radosgw")
