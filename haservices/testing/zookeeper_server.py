"""
`ZooKeeperServer`: a real ZooKeeper as a child process, out of pyspark's own jars.

Nothing is downloaded or imitated: the ``pyspark`` wheel carries ZooKeeper with all
that it needs.  pyspark itself is not imported; only its directory is looked up.

Theory of operation
-------------------
The JVM is a child of a guard process (process_guard.py), so that it never outlives
us, whatever becomes of us.  It serves when its four-letter word ``srvr`` names a mode;
until then we ask, and wait for the child's death between the questions.

The port is reserved for the life of the `ZooKeeperServer`, so that a restarted one is
found where it was.  Writes are not forced to the disk: they survive the death of the
process, though not of the machine, which is all that a test can cause.

As for ZooKeeper's own ``zkServer.sh``, options of its JVM may stand in the environment,
in ``SERVER_JVMFLAGS``: such as ``-XX:SharedArchiveFile=…`` where many servers start.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from haservices.testing import process_guard
from haservices.testing.reserved_port import LOOPBACK_HOST, ReservedPort
from nameservice import ConfigurationError, LocalProtocolError, UnreachableError


if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType


__all__ = ["ZooKeeperServer", "ZooKeeperServerTLS"]

_FLAGS_VARIABLE: Final = "SERVER_JVMFLAGS"
_MAIN_CLASS: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# The whole of pyspark's jars would do, but takes three times as long to start.
_JAR_PATTERNS: Final = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "commons-cli-*.jar",
    "commons-io-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "metrics-core-*.jar",
    "netty-*.jar",
    "slf4j-api-*.jar",
    "snappy-java-*.jar",
)
_JAVA_OPTIONS: Final = (
    "-Xmx256m",
    "-Xshare:auto",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.apache.logging.log4j.level=INFO",
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dzookeeper.preAllocSize=64",  # KB of a transaction log, instead of 64 MB
)
_QUESTION_INTERVAL_SECONDS: Final = 0.02
_ANSWER_TIMEOUT_SECONDS: Final = 2.0
_STOP_TIMEOUT_SECONDS: Final = 10.0
_FREEZE_INTERVAL_SECONDS: Final = 0.001
_LOG_TAIL_CHARACTERS: Final = 3000


@frozen(kw_only=True)
class ZooKeeperServerTLS:
    """
    What a server needs to offer TLS beside its plain port.

    Attributes:
        key_store_file: Its private key and certificate in one PEM file (``.pem``).
        trust_store_file: Whose clients it trusts, a PEM file of certificates.
        wants_client_certificate: Whether clients must show one.
    """

    key_store_file: str
    trust_store_file: str
    wants_client_certificate: bool = False


@final
class ZooKeeperServer:
    """
    One ZooKeeper server; a context manager that starts and closes it.

    Not thread-safe, but for what it runs.

    Args:
        data_dir: Where its data, configuration and log go; None takes a directory
            that is removed on `close`.
        port: Where clients connect; 0 takes any port that is free.
        tick_time_ms: ZooKeeper's unit of time.
        session_timeout_seconds_min: The shortest session that it agrees to.
        session_timeout_seconds_max: The longest session that it agrees to.
        settings: Further lines of ``zoo.cfg``.
        java_options: Further options of the JVM, such as ``-Dzookeeper.…``.
        tls: What it needs to serve TLS too, at `tls_url`.
        names_its_hosts: Whether it looks up names in `hosts_file` alone.
        start_timeout_seconds: How long `start` waits until it serves.

    Raises:
        ConfigurationError: If there is no Java or no pyspark; says what to install.
            If ``SERVER_JVMFLAGS`` is no list of words.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: int = 0,
        tick_time_ms: int = 100,
        session_timeout_seconds_min: float = 0.2,
        session_timeout_seconds_max: float = 60.0,
        settings: Mapping[str, str | int] | None = None,
        java_options: tuple[str, ...] = (),
        tls: ZooKeeperServerTLS | None = None,
        names_its_hosts: bool = False,
        start_timeout_seconds: float = 60.0,
    ) -> None:
        self._java = _find_java()
        self._jars = _find_jars()
        self._start_timeout_seconds = start_timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._is_paused = False
        with contextlib.ExitStack() as resources:
            if data_dir is None:
                # Not removed with an error if the JVM, still dying, is in the way.
                temporary = tempfile.TemporaryDirectory(
                    prefix="zookeeper-", ignore_cleanup_errors=True
                )
                data_dir = resources.enter_context(temporary)
            self._directory = Path(data_dir).absolute()
            self._java_options = (*_JAVA_OPTIONS, *_server_flags(), *java_options)
            if names_its_hosts:
                self._java_options += (f"-Djdk.net.hosts.file={self.hosts_file}",)
            self._reserved = resources.enter_context(ReservedPort(port=port))
            self._reserved_tls = (
                None if tls is None else resources.enter_context(ReservedPort())
            )
            self._settings: dict[str, str | int] = {
                "dataDir": str(self._directory / "data"),
                "clientPort": self.port,
                "clientPortAddress": LOOPBACK_HOST,
                "tickTime": tick_time_ms,
                "minSessionTimeout": round(session_timeout_seconds_min * 1000),
                "maxSessionTimeout": round(session_timeout_seconds_max * 1000),
                "admin.enableServer": "false",
                "4lw.commands.whitelist": "*",
                "maxClientCnxns": 0,
            }
            if tls is not None:
                self._settings |= self._tls_settings(tls)
            self._settings |= settings or {}
            self._resources = resources.pop_all()

    @property
    def port(self) -> int:
        """Return the port for clients."""
        return self._reserved.port

    @property
    def address(self) -> str:
        """Return ``host:port``."""
        return f"{LOOPBACK_HOST}:{self.port}"

    @property
    def url(self) -> str:
        """Return the URL that `HAConfig` takes."""
        return f"zookeeper://{self.address}"

    @property
    def tls_url(self) -> str:
        """Return the URL of the TLS port."""
        assert self._reserved_tls is not None
        return f"zookeeper://{LOOPBACK_HOST}:{self._reserved_tls.port}"

    @property
    def directory(self) -> Path:
        """Return where its data, configuration and log are."""
        return self._directory

    @property
    def log_file(self) -> Path:
        """Return the file with everything that it has written so far."""
        return self._directory / "zookeeper.log"

    @property
    def hosts_file(self) -> Path:
        """Return the file of names and addresses that it may be told to use."""
        return self._directory / "hosts"

    @property
    def is_running(self) -> bool:
        """Return whether its process lives, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the process id of the JVM."""
        self._check_running()
        return self._pid

    def start(self, *, waits: bool = True) -> None:
        """
        Start it on the data that it has, if any.

        Args:
            waits: Whether to return only when it serves, as `wait_until_serving` does.

        Raises:
            UnreachableError: If it ends, or does not serve in time; shows its output.
            LocalProtocolError: If it is running.
        """
        if self.is_running:
            message = "the ZooKeeper server is running already"
            raise LocalProtocolError(message)
        (self._directory / "data").mkdir(parents=True, exist_ok=True)
        configuration = self._directory / "zoo.cfg"
        configuration.write_text(
            "".join(f"{name}={value}\n" for name, value in self._settings.items()),
            encoding="utf-8",
        )
        command = [
            *(sys.executable, "-I", "-S", process_guard.__file__, str(os.getpid())),
            *(self._java, *self._java_options, "-cp", os.pathsep.join(self._jars)),
            *(_MAIN_CLASS, str(configuration)),
        ]
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                # A Ctrl-C at the terminal is for us: we stop it in our own time.
                start_new_session=True,
            )
        assert process.stdout is not None
        with process.stdout as output:
            pid_text = output.readline()
        self._process = process
        self._is_paused = False
        if not pid_text:
            process.wait()
            raise self._start_failed("it could not be started", 0.0)
        self._pid = int(pid_text)
        if waits:
            self.wait_until_serving()

    def wait_until_serving(self) -> None:
        """
        Return when it serves clients; a member of an ensemble needs a quorum for that.

        Raises:
            UnreachableError: If it ends, or does not serve in time; shows its output.
        """
        assert self._process is not None
        began = time.monotonic()
        while "Mode: " not in self.try_ask("srvr"):
            waited_seconds = time.monotonic() - began
            if waited_seconds > self._start_timeout_seconds:
                raise self._start_failed("it does not serve", waited_seconds)
            # Nothing tells when it will listen; its death, though, ends the wait.
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_QUESTION_INTERVAL_SECONDS)
                raise self._start_failed(f"it ended with code {code}", waited_seconds)

    def ask(self, word: str) -> str:
        """
        Return its answer to a four-letter word, such as ``mntr``.

        Raises:
            OSError: If it does not answer.
        """
        with socket.create_connection(
            (LOOPBACK_HOST, self.port), timeout=_ANSWER_TIMEOUT_SECONDS
        ) as connection:
            connection.sendall(word.encode("ascii"))
            chunks = []
            while chunk := connection.recv(65_536):
                chunks.append(chunk)
        return b"".join(chunks).decode("utf-8", errors="replace")

    def try_ask(self, word: str) -> str:
        """Return its answer to a four-letter word, or nothing if there is none."""
        try:
            return self.ask(word)
        except OSError:
            return ""

    def stop(self) -> None:
        """End it cleanly; its data stays.  Idempotent."""
        if self._process is None:
            return
        if self.is_running:
            if self._is_paused:
                self.resume()
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process.wait()

    def kill(self) -> None:
        """End it with SIGKILL; its data stays.  Idempotent."""
        if self._process is None:
            return
        if self.is_running:
            self._signal(signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        """Stop it if it runs, and start it again: same data, same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """
        Freeze its process (SIGSTOP): it keeps its connections, and is silent.

        Returns once all its threads stand, where the system tells that (Linux).
        """
        self._check_running()
        self._signal(signal.SIGSTOP)
        self._wait_until_frozen()
        self._is_paused = True

    def resume(self) -> None:
        """Make a frozen process go on (SIGCONT)."""
        self._check_running()
        self._signal(signal.SIGCONT)
        self._is_paused = False

    def close(self) -> None:
        """Stop it, and release its port and its own directory.  Idempotent."""
        self.stop()
        self._resources.close()

    def __enter__(self) -> ZooKeeperServer:
        try:
            self.start()
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

    def _tls_settings(self, tls: ZooKeeperServerTLS) -> dict[str, str | int]:
        assert self._reserved_tls is not None
        return {
            "secureClientPort": self._reserved_tls.port,
            "secureClientPortAddress": LOOPBACK_HOST,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": tls.key_store_file,
            "ssl.trustStore.location": tls.trust_store_file,
            "ssl.clientAuth": "need" if tls.wants_client_certificate else "none",
        }

    def _signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def _wait_until_frozen(self) -> None:
        """Wait for the last thread: until it stands it may still answer."""
        assert self._process is not None
        deadline = time.monotonic() + _STOP_TIMEOUT_SECONDS
        while not _is_frozen(self._pid) and time.monotonic() < deadline:
            try:
                self._process.wait(_FREEZE_INTERVAL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            return  # it has ended

    def _check_running(self) -> None:
        if not self.is_running:
            message = "the ZooKeeper server is not running: start it first"
            raise LocalProtocolError(message)

    def _start_failed(self, what: str, waited_seconds: float) -> UnreachableError:
        self.kill()
        output = self.log_file.read_text(encoding="utf-8", errors="replace")
        detail = f"{what}; the end of its output:\n{output[-_LOG_TAIL_CHARACTERS:]}"
        return UnreachableError(self.url, waited_seconds, detail)


def _find_java() -> str:
    """Return the path of ``java``, looked for as Spark does."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        message = (
            f"there is no Java in JAVA_HOME ({home}): correct or unset it"
            if home
            else "ZooKeeper needs Java 17 or newer: install it (Debian, Ubuntu: "
            "openjdk-17-jre-headless), or set JAVA_HOME to one"
        )
        raise ConfigurationError(message)
    return java


def _server_flags() -> tuple[str, ...]:
    """Return the options of the JVM in the environment, split as a shell does."""
    text = os.environ.get(_FLAGS_VARIABLE, "")
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        message = f"{_FLAGS_VARIABLE} cannot be read ({error}): {text}"
        raise ConfigurationError(message) from error


def _find_jars() -> tuple[str, ...]:
    """Return the jars of pyspark that a ZooKeeper server needs."""
    package = importlib.util.find_spec("pyspark")
    if package is None or not package.submodule_search_locations:
        message = (
            "the ZooKeeper server comes out of the pyspark package, which is not "
            "installed: pip install 'spark-lodestar[spark]'"
        )
        raise ConfigurationError(message)
    directory = Path(package.submodule_search_locations[0]) / "jars"
    jars = [
        str(path)
        for pattern in _JAR_PATTERNS
        for path in sorted(directory.glob(pattern))
    ]
    if not any(Path(jar).name.startswith("zookeeper-") for jar in jars):
        message = (
            f"{directory} holds no ZooKeeper: reinstall pyspark 4.0 or newer "
            "(pip install --force-reinstall pyspark)"
        )
        raise ConfigurationError(message)
    return tuple(jars)


def _is_frozen(pid: int) -> bool:
    """Return whether every thread of *pid* stands; True where nothing tells."""
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.is_dir():
        return True
    for task in tasks.iterdir():
        try:
            stat = (task / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # the thread has ended
        # The name in parentheses may hold anything; the state follows it.
        if stat.rpartition(")")[2].split()[0] != "T":
            return False
    return True
