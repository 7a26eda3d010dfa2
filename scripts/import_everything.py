"""Import what an installed distribution brings; run by ``scripts/check_wheel``."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import PurePosixPath


# What needs more than the runtime dependencies, and why.
NEEDS_MORE = {
    "sparkpipeline": "the extra spark",
    "pyspark_lodestar": "the extra spark",
    "pyspark_lodestar_log": "the extra spark",
    "haservices.metrics.exposition": "the extra metrics",
    "haservices.pytest_plugin": "pytest",
    "queryablestate.client.arrow_columns": "the extra frames",
    "queryablestate.gateway": "the extra http",
    "queryablestate.sql.engine": "the extra sql",
    "queryablestate.sql.worker": "the extra sql",
}


def main(distribution_name: str) -> None:
    """Import every module of *distribution_name*; fail on the first that cannot be."""
    files = importlib.metadata.files(distribution_name) or []
    paths = [PurePosixPath(file) for file in files]
    modules = sorted(
        ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for path in paths
        if path.suffix == ".py"
    )
    packages = sorted({module.partition(".")[0] for module in modules})
    if not packages:
        sys.exit(f"{distribution_name} brings no packages")
    for package in packages:
        if PurePosixPath(package, "py.typed") not in paths:
            sys.exit(f"{package} has no py.typed")
        if not importlib.util.find_spec(package):
            sys.exit(f"{package} is not where it can be found")
    imported_count = 0
    for module in modules:
        if any(f"{module}.".startswith(f"{name}.") for name in NEEDS_MORE):
            continue
        importlib.import_module(module)
        imported_count += 1
    print(f"{imported_count} modules of {len(packages)} packages can be imported")


if __name__ == "__main__":
    main(sys.argv[1])
