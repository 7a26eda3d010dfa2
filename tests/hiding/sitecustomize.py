"""
Hides Spark's archives from the Python processes of tests: PySpark is installed, too.

Spark puts them first in the path of its workers.  What comes from there is compiled in
each process, and its tables are read anew, some 40 times, by each task that is a
worker's first: most of a second of a processor.  `make demo`, and the wheel in an empty
environment, run with them.
"""

import sys


sys.path[:] = [path for path in sys.path if not path.endswith((".zip", ".jar"))]
for _path in [path for path in sys.path_importer_cache if path not in sys.path]:
    del sys.path_importer_cache[_path]
