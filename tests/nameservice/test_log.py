from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import structlog
from structlog.testing import capture_logs

from nameservice.log import configure_logging, get_logger
from tests.recording import FullDisk


if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave structlog to the other tests as it was."""
    config = structlog.get_config()
    yield
    structlog.configure(**config)


class TestConfigureLogging:
    def test_piped_lines_are_json(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where a program reads the log, each line is one JSON object."""
        piped = io.StringIO()
        monkeypatch.setattr("sys.stderr", piped)
        configure_logging()
        get_logger(component_id="job").info("leadership.granted", epoch=7)
        line = json.loads(piped.getvalue())
        del line["timestamp"]
        assert line == {
            "event": "leadership.granted",
            "level": "info",
            "component_id": "job",
            "epoch": 7,
        }

    def test_traceback_is_in_the_json(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An exception is a field of its line, not lines of its own."""
        piped = io.StringIO()
        monkeypatch.setattr("sys.stderr", piped)
        configure_logging()
        try:
            raise ValueError("seven")  # noqa: TRY301 - to be logged with its traceback
        except ValueError:
            get_logger().exception("contender.failed")
        assert "ValueError: seven" in json.loads(piped.getvalue())["exception"]

    def test_lines_on_a_terminal_are_for_people(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where a person reads the log, no line is JSON."""
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        configure_logging()
        get_logger().info("leadership.granted", epoch=7)
        assert "leadership.granted" in terminal.getvalue()
        with pytest.raises(json.JSONDecodeError):
            json.loads(terminal.getvalue())

    @pytest.mark.proves("F4")
    @pytest.mark.parametrize("configure", ["", "configure_logging()"])
    def test_tracebacks_do_not_show_what_variables_hold(self, configure: str) -> None:
        """F4: one may hold a token; with rich installed they would be shown."""
        pytest.importorskip("rich")
        program = f"""
import sys
sys.stderr.isatty = lambda: True
from nameservice.log import configure_logging, get_logger
def log_in(token):
    raise RuntimeError("broken")
{configure}
try:
    log_in("".join(["se", "cret"]))
except RuntimeError:
    get_logger().exception("connection.failed")
"""
        ended = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        assert "secret" not in ended.stderr
        assert "RuntimeError: broken" in ended.stderr

    @pytest.mark.parametrize(("no_color", "is_coloured"), [("1", False), ("", True)])
    def test_lines_are_coloured_unless_that_is_not_wanted(
        self, monkeypatch: pytest.MonkeyPatch, no_color: str, *, is_coloured: bool
    ) -> None:
        """As https://no-color.org has it: ``NO_COLOR`` is set, and is not empty."""
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("NO_COLOR", no_color)
        configure_logging()
        get_logger().info("leadership.granted", epoch=7)
        assert ("\x1b[" in terminal.getvalue()) is is_coloured

    @pytest.mark.parametrize(
        ("level_name", "expected"),
        [
            ("debug", ["debug", "info", "warning", "error"]),
            ("info", ["info", "warning", "error"]),
            ("warning", ["warning", "error"]),
            ("error", ["error"]),
        ],
    )
    def test_level_hides_what_is_below_it(
        self, monkeypatch: pytest.MonkeyPatch, level_name: str, expected: list[str]
    ) -> None:
        """Only lines of that level and above come out."""
        piped = io.StringIO()
        monkeypatch.setattr("sys.stderr", piped)
        configure_logging(level_name)
        log = get_logger()
        log.debug("a")
        log.info("a")
        log.warning("a")
        log.error("a")
        lines = piped.getvalue().splitlines()
        assert [json.loads(line)["level"] for line in lines] == expected


class TestGetLogger:
    def test_keeps_its_values(self) -> None:
        """What is bound once is on every line."""
        log = get_logger(component="election")
        with capture_logs() as lines:
            log.info("leadership.granted", epoch=7)
        assert lines == [
            {
                "component": "election",
                "epoch": 7,
                "event": "leadership.granted",
                "log_level": "info",
            }
        ]

    def test_a_line_that_cannot_be_written_is_lost(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A full disk under the log costs its lines, and raises in no call."""
        monkeypatch.setattr("sys.stderr", FullDisk())
        configure_logging()
        log = get_logger(component="election")
        for say in (log.info, log.warning, log.error, log.exception):
            say("leadership.granted", epoch=7)
        log.bind(epoch=7).warning("leadership.lost")

    def test_the_standard_librarys_logger_is_that_of_the_module(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An application that sets levels of ours by name goes on doing so."""
        structlog.configure(
            processors=[structlog.processors.KeyValueRenderer()],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )
        log = get_logger(component="election")
        log.warning("leadership.lost")
        log.bind(epoch=7).warning("leadership.lost")
        assert [record.name for record in caplog.records] == [__name__, __name__]

    def test_a_factory_of_loggers_need_take_no_name(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What the application has configured is called as structlog does."""

        def make() -> structlog.PrintLogger:
            return structlog.PrintLogger()

        structlog.configure(logger_factory=make)
        get_logger(component="election").warning("leadership.lost")
        assert "leadership.lost" in capsys.readouterr().out

    def test_a_processor_that_fails_is_not_our_callers_problem(self) -> None:
        """What the application configured may fail: that costs the line alone."""

        def fail(*_: object) -> dict[str, object]:
            raise KeyError("request_id")

        structlog.configure(processors=[fail])
        get_logger().warning("leadership.lost")


class TestApplication:
    """What becomes of structlog in a program that imports us."""

    def test_its_own_lines_are_shown_as_ever(self) -> None:
        """A program that never configured structlog goes on seeing its own lines."""
        program = """
import structlog
import haservices
from nameservice import get_logger
log = get_logger(component="election")
log.info("quiet"); log.warning("trouble", epoch=7)
structlog.get_logger().info("mine")
print(structlog.is_configured())
structlog.configure(processors=[structlog.processors.JSONRenderer()])
log.info("asked for")
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert "quiet" not in done.stdout + done.stderr
        assert "trouble" in done.stderr
        assert "component" in done.stderr
        mine, is_configured, asked_for = done.stdout.splitlines()
        assert "mine" in mine
        assert is_configured == "False"
        assert json.loads(asked_for) == {"component": "election", "event": "asked for"}

    def test_nothing_goes_to_standard_output_without_standard_error(self) -> None:
        """A program that was started with ``2>&-``: its output is its own."""
        program = """
import sys
from nameservice import get_logger
sys.stderr = None
get_logger(component="election").warning("trouble")
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert done.stdout == ""
