"""Settings of sessions that live for seconds, of tests and of the drivers that tests kill."""

from tandemq.spark.runtime.session import SETTINGS

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
SHORT = {
    # Less compiling is quicker, and less is started that two cores have no use for.
    DRIVER_OPTIONS: f"{SETTINGS[DRIVER_OPTIONS]} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
