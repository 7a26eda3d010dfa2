"""The command line: every verb parses, calls one of the packages, and prints."""

from __future__ import annotations


__all__: list[str] = []
