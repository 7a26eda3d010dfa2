"""pytest fixtures for test suites of applications that use Lodestar."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from collections.abc import Iterator

    from haservices.interface import HAServices
    from haservices.testing.control import LeadershipControl


__all__ = ["ha_services", "leadership_control"]

# Imports wait for the fixtures: the plugin is loaded in every run of pytest, and most
# of them have nothing to do with us.


@pytest.fixture
def ha_services() -> Iterator[HAServices]:
    """
    Return the services of an embedded name service that is this test's own.

    Code under test that opens services itself gets ``ha_services.config``, or its URL.
    """
    from haservices import open_ha_services  # noqa: PLC0415
    from haservices.embedded import forget_embedded  # noqa: PLC0415

    name = f"pytest-{uuid.uuid4().hex}"
    try:
        with open_ha_services(f"embedded:{name}") as ha:
            yield ha
    finally:
        forget_embedded(name)


@pytest.fixture
def leadership_control(ha_services: HAServices) -> LeadershipControl:
    """Return control over who leads in the test's own name service."""
    from haservices.testing.control import LeadershipControl  # noqa: PLC0415

    return LeadershipControl(ha_services)
