"""Settings of sessions that live for seconds, of tests and of the drivers that tests kill."""

from tandemq.spark.runtime.session import SETTINGS

SHORT = {
    # Less compiling is quicker, and less is started that two cores have no use for.
    "spark.driver.extraJavaOptions":
        f"{SETTINGS['spark.driver.extraJavaOptions']} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}  # fmt: skip
