"""Debian's chromium, driven by playwright; what it complains about is kept."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright


__all__ = ["WAIT_MS", "ColorScheme", "chromium", "opened"]

ColorScheme: TypeAlias = Literal["light", "dark"]

WAIT_MS: Final = 60_000
"""Bounds how long a broken test takes."""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser; skip the test where there is none."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed; Debian has it in 'chromium'")
    expect.set_options(timeout=WAIT_MS)
    # Its sandbox cannot be had as root, as containers run.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(
    browser: Browser, *, width: int, scheme: ColorScheme, has_scripts: bool = True
) -> Iterator[Page]:
    """
    Yield a page of a browser of somebody's own, and fail if it complains.

    Args:
        browser: Which.
        width: Of the window, pixels.
        scheme: ``light`` or ``dark``.
        has_scripts: Whether JavaScript runs.
    """
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
        java_script_enabled=has_scripts,
    )
    complaints: list[str] = []
    with contextlib.closing(context):
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                complaints.append(message.text)
                # A status above 399 and a lost connection are reported, too.
                if message.type == "error"
                and "Failed to load" not in message.text
                and "net::ERR" not in message.text
                else None
            ),
        )
        yield page
        assert complaints == []
