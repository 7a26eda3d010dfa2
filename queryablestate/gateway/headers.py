"""Headers that every answer has; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


__all__ = ["HTTPS_HEADERS", "SECURITY_HEADERS"]

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""What keeps a browser from doing more with an answer than to show it."""

HTTPS_HEADERS: Final[Mapping[str, str]] = {
    "strict-transport-security": "max-age=31536000"
}
"""Where there is HTTPS, there is no way back."""
