"""
A complete Spark application that publishes state: the last reading of each sensor.

Submit it as ``spark-submit sensor_app.py leaderserver://10.0.0.5:5170 CHECKPOINT``;
CHECKPOINT is a directory that outlives the application.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from sparkpipeline import ha_config, publish_state


def main(url: str, checkpoint: str) -> None:
    """Publish until the query is stopped."""
    spark = (
        SparkSession.builder.appName("sensors")
        .config("spark.lodestar.url", url)  # or in spark-defaults.conf, or --conf
        .getOrCreate()
    )
    stream = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    readings = stream.selectExpr("value % 10 as sensor", "value as reading")
    query = (
        publish_state(
            readings,
            ha_config(spark),
            job_id="weather",
            state_name="sensors",
            key="sensor",
            output_mode="append",
            order_by="reading",
        )
        .option("checkpointLocation", checkpoint)
        .queryName("sensors")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
