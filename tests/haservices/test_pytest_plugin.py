"""The fixtures as another project's test suite uses them: installed, in its own run."""

from __future__ import annotations

import pytest


pytest_plugins = ["pytester"]

SUITE = """
from haservices import campaign
from haservices.testing import LeadershipControl


def test_services_are_embedded_and_open(ha_services):
    assert ha_services.config.url.startswith("embedded:")
    with campaign(ha_services, "job", "a:1", timeout_seconds=30.0) as leadership:
        assert leadership.epoch >= 1


def test_services_are_each_tests_own(ha_services):
    assert list(ha_services.operations.leaders()) == []


def test_leadership_is_under_control(ha_services, leadership_control):
    assert isinstance(leadership_control, LeadershipControl)
    with campaign(ha_services, "job", "a:1", timeout_seconds=30.0) as leadership:
        leadership_control.revoke("job")
        assert leadership.lost.wait(30.0)
"""


@pytest.mark.shells
class TestPlugin:
    def test_fixtures_are_there(self, pytester: pytest.Pytester) -> None:
        """`ha_services` is the embedded backend, `leadership_control` decides in it."""
        pytester.makepyfile(SUITE)
        result = pytester.runpytest_subprocess("-W", "error")
        result.assert_outcomes(passed=3)
