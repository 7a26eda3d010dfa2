"""
What the peers need, got when it is missing; `AbsentError` says what cannot be got.

Debian packages come by ``apt-get``, if we may; Python packages and Flink by ``pip``, by
the hashes of the two requirements files beside this one.  Neither belongs to what the
product needs, so neither is in its lock.  All of it is kept in ``.peers/``, which git
ignores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

from benchmarks.peers._interface import AbsentError


__all__ = ["clients_directory", "debian_program", "flink_directory"]

_HERE: Final = Path(__file__).parent
_CACHE: Final = _HERE.parent / ".peers"
_FLINK: Final = "apache-flink-1.10.3"
_JARS: Final = (
    "lib/flink-dist_2.11-1.10.3.jar",
    "lib/log4j-1.2.17.jar",
    "lib/slf4j-log4j12-1.7.15.jar",
    "opt/flink-queryable-state-runtime_2.11-1.10.3.jar",
)
_PEER_CLASS: Final = "FlinkPeer"


def debian_program(program: str, package: str) -> str:
    """Return the path of *program*, which is installed if that is possible."""
    found = shutil.which(program)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _try("apt-get", "install", "--yes", "--no-install-recommends", package)
        found = shutil.which(program)
    if found is None:
        raise AbsentError(f"no {program}: install the Debian package {package}")
    return found


def clients_directory() -> Path:
    """Return the directory from which redis-py and hiredis are imported."""
    directory = _CACHE / "clients"
    if not (directory / "redis").is_dir():
        _pip("install", "--no-deps", "--target", str(directory), name="redis.txt")
    return directory


def flink_directory() -> Path:
    """Return the directory with the jars of Flink and with that of our job."""
    directory = _CACHE / "flink"
    missing = [name for name in _JARS if not (directory / Path(name).name).is_file()]
    if missing:
        archive = _CACHE / f"{_FLINK}.tar.gz"
        if not archive.is_file():
            # What pip needs to read the archive's metadata is in our lock.
            _pip(
                *("download", "--no-deps", "--no-binary", ":all:"),
                *("--no-build-isolation", "--dest", str(_CACHE)),
                name="flink.txt",
            )
        directory.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as opened:
            for name in missing:
                source = opened.extractfile(f"{_FLINK}/deps/{name}")
                assert source is not None
                with source, (directory / Path(name).name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    _compile(directory)
    return directory


def _compile(directory: Path) -> None:
    """Make the jar of our job and client, if its source is newer."""
    source = _HERE / "java" / f"{_PEER_CLASS}.java"
    jar = directory / f"{_PEER_CLASS}.jar"
    if jar.is_file() and jar.stat().st_mtime >= source.stat().st_mtime:
        return
    javac = shutil.which("javac")
    if javac is None:
        raise AbsentError("no javac: install the Debian package default-jdk-headless")
    classes = directory / "classes"
    subprocess.run(
        [
            *(javac, "--release", "8", "-nowarn", "-cp", f"{directory}/*"),
            *("-d", str(classes), str(source)),
        ],
        check=True,
    )
    with zipfile.ZipFile(jar, "w") as opened:
        for path in sorted(classes.glob("*.class")):
            opened.write(path, path.name)


def _pip(*arguments: str, name: str) -> None:
    _CACHE.mkdir(exist_ok=True)
    requirements = _HERE / "requirements" / name
    _try(
        *(sys.executable, "-m", "pip", "--quiet", *arguments),
        *("--require-hashes", "--requirement", str(requirements)),
    )


def _try(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines() or ["no output"]
        raise AbsentError(f"{' '.join(command[:5])} … failed: {lines[-1]}")
