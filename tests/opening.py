"""Opening a name service on a machine that may stand still for a moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from haservices import open_ha_services
from nameservice import UnreachableError
from tests.recording import WAIT_SECONDS


if TYPE_CHECKING:
    from haservices import HAConfig, HAServices


def open_patiently(config: HAConfig) -> HAServices:
    """
    Open what *config* names, which is there, however short its connect timeout is.

    That timeout is short in tests of calls that are not answered.  A busy machine may
    take longer to open the services.
    """
    give_up_at = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return open_ha_services(config)
        except UnreachableError:
            if time.monotonic() > give_up_at:
                raise
