"""
Keep the state of a Spark application beside its executors, and read it with Spark.

Run it as ``python examples/nodes_on_executors.py leaderserver://127.0.0.1:5170 DATA``;
DATA is an absolute path, the same on every machine.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from sparkpipeline import ha_config, source_options, start_nodes


if __name__ == "__main__":
    url, data_dir = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers' Python, too
    with SparkSession.builder.config("spark.lodestar.url", url).getOrCreate() as spark:
        config = ha_config(spark)
        with start_nodes(spark, config, data_dir=data_dir) as nodes:
            print(f"serving: {', '.join(nodes.node_ids)}")

            numbers = spark.range(1_000).selectExpr("id", "id * id as square")
            (
                numbers.write.format("lodestar")
                .options(**source_options(config))
                .option("job_id", "numbers")
                .option("state_name", "squares")
                .option("key", "id")
                .mode("overwrite")
                .save()
            )

            squares = (
                spark.read.format("lodestar")
                .options(**source_options(config))
                .option("job_id", "numbers")
                .option("state_name", "squares")
                .load()
            )
            squares.where("id < 3").orderBy("id").show()
