"""Tests of the object stores; `contract` and `subjects` are used by the S3 matrix, too."""
