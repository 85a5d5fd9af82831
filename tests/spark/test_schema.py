"""Requested columns, and errors about unknown ones."""

import pytest
from pyspark.sql.types import LongType, StructType

from tandemq.errors import ConfigError
from tandemq.spark.sources.schema import DETAIL, KAFKA, MESSAGE, check_columns, message_schema


def test_schemas_have_the_documented_columns() -> None:
    assert message_schema().names == list(MESSAGE)
    assert message_schema(details=True).names == [*MESSAGE, *DETAIL]
    assert message_schema(kafka=True).names == list(KAFKA)
    assert message_schema(map_properties=True)["properties"].dataType.simpleString() == "map<string,string>"


def test_columns_may_be_fewer_and_in_another_order() -> None:
    asked = StructType().add("queueOffset", LongType()).add("topic", "string")
    assert check_columns(asked, message_schema(), "the log") == ["queueOffset", "topic"]


def test_unknown_column_is_named_with_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match=r"no column 'queueoffsets'.*did you mean 'queueOffset'\?"):
        check_columns(StructType().add("queueoffsets", LongType()), message_schema(), "the log")


def test_column_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="column 'queueId' of the log is int, not bigint"):
        check_columns(StructType().add("queueId", LongType()), message_schema(), "the log")
