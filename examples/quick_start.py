"""
Publish the last reading of each sensor from a Spark stream, and ask for one.

Everything runs in this process: run it as ``python quick_start.py``.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from haservices import open_ha_services
from queryablestate import QueryableStateClient
from queryablestate.local_cluster import LocalStateCluster
from sparkpipeline import publish_state


spark = SparkSession.builder.getOrCreate()
stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 30).load()
readings = stream.selectExpr("value % 3 as sensor", "value as reading")

url = "embedded:quick-start"  # or leaderserver://host:port, or zookeeper://host:2181
with open_ha_services(url) as ha, LocalStateCluster(ha):
    query = publish_state(
        readings,
        url,
        job_id="weather",
        state_name="sensors",
        key="sensor",
        output_mode="append",
        order_by="reading",
    )
    query.trigger(availableNow=True).start().awaitTermination()
    with QueryableStateClient(url) as client:
        print(client.get("weather", "sensors", 1))
