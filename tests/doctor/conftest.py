"""Tests of this folder run in the jobs of tests/rpc."""

from tests.rpc.conftest import job, make_job, processes, pytest_generate_tests

__all__ = ["job", "make_job", "processes", "pytest_generate_tests"]
