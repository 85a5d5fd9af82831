"""Settings of short sessions, of tests and of the drivers that tests kill."""

from tandemq.spark.runtime.session import SETTINGS

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
SHORT = {
    # Less compilation, and fewer processes that two cores cannot use.
    DRIVER_OPTIONS: f"{SETTINGS[DRIVER_OPTIONS]} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.daemon.module": "tandemq.spark.runtime.daemon",
}
