"""A Prometheus that watches the processes of a drill, and tells which alerts fire."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, final

import pytest

from haservices.testing.reserved_port import ReservedPort
from tests.drills.processes import WAIT_SECONDS, Process
from tests.recording import wait_until


if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType


__all__ = ["ALERTS", "Prometheus"]

RULES: Final = (
    Path(__file__).parents[2] / "deploy" / "prometheus" / "lodestar.rules.yml"
)

_AGE_SECONDS: Final = 3
_WINDOW: Final = "20s"


def _in_a_hurry() -> str:
    """Return the rules with less patience: the drill takes no ten minutes."""
    text = RULES.read_text(encoding="utf-8")
    text = re.sub(r"^(        for:) \w+$", r"\1 1s", text, flags=re.MULTILINE)
    text = re.sub(r"\[\d+m\]", f"[{_WINDOW}]", text)
    return text.replace("age_seconds > 600", f"age_seconds > {_AGE_SECONDS}")


ALERTS: Final = frozenset(
    re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))
)
"""All alerts there are."""


@final
class Prometheus:
    """
    Debian's Prometheus with the rules of deploy/, in a hurry.  A context manager.

    Args:
        directory: Where its configuration, data and log go.
        targets: Where metrics are served, by the name of an instance.
    """

    def __init__(self, directory: Path, targets: Mapping[str, str]) -> None:
        programs = [shutil.which(name) for name in ("prometheus", "promtool")]
        if None in programs:
            pytest.skip("prometheus is not installed; Debian's package is 'prometheus'")
        self._prometheus, self._promtool = (str(program) for program in programs)
        self._directory = directory / "prometheus"
        self._directory.mkdir()
        self._targets = dict(targets)
        self._port = ReservedPort()
        self._process: Process | None = None

    def __enter__(self) -> Self:
        # JSON is YAML, too.
        configuration = {
            "global": {
                "scrape_interval": "1s",
                "scrape_timeout": "1s",
                "evaluation_interval": "1s",
            },
            "rule_files": ["lodestar.rules.yml"],
            "scrape_configs": [
                {
                    "job_name": "lodestar",
                    "static_configs": [
                        {"targets": [address], "labels": {"instance": name}}
                        for name, address in self._targets.items()
                    ],
                }
            ],
        }
        file = self._directory / "prometheus.yml"
        file.write_text(json.dumps(configuration), encoding="utf-8")
        rules = self._directory / "lodestar.rules.yml"
        rules.write_text(_in_a_hurry(), encoding="utf-8")
        checked = subprocess.run(
            [self._promtool, "check", "config", str(file)],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr
        self._process = Process(
            [
                self._prometheus,
                f"--config.file={file}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port.port}",
            ],
            log_file=self._directory / "prometheus.log",
        )
        try:
            wait_until(self._is_ready, timeout_seconds=WAIT_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it.  Idempotent."""
        if self._process is not None:
            self._process.kill()
        self._port.close()

    def firing(self) -> list[Mapping[str, str]]:
        """Return the labels of each alert that fires now."""
        with urllib.request.urlopen(self._url("/api/v1/alerts"), timeout=30) as found:
            answer: dict[str, Any] = json.load(found)
        return [
            alert["labels"]
            for alert in answer["data"]["alerts"]
            if alert["state"] == "firing"
        ]

    def fires(self, name: str, **labels: str) -> bool:
        """Return whether an alert fires now with these labels among its own."""
        wanted = {"alertname": name, **labels}.items()
        return any(wanted <= found.items() for found in self.firing())

    def wait_for(self, name: str, **labels: str) -> None:
        """Return once an alert fires."""
        assert name in ALERTS
        try:
            wait_until(lambda: self.fires(name, **labels), timeout_seconds=WAIT_SECONDS)
        except AssertionError:
            raise AssertionError(
                f"{name} {labels} does not fire, but {self.firing()}"
            ) from None

    def wait_for_end_of(self, name: str, **labels: str) -> None:
        """Return once an alert does not fire any more."""
        wait_until(lambda: not self.fires(name, **labels), timeout_seconds=WAIT_SECONDS)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self._url("/-/ready"), timeout=30) as found:
                return bool(found.status == 200)
        except (urllib.error.URLError, ConnectionError):
            return False

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port.port}{path}"
