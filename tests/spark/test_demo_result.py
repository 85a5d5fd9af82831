"""The result of a demo with its pipeline."""

from pathlib import Path

from tandemq.demo.pipeline import Gold, PipelineResult
from tests.unit.demo.test_result import ROWS, checked


def test_faults_of_the_pipeline_and_a_lake_that_differs_are_faults(tmp_path: Path) -> None:
    gold = {"T": Gold(messages=ROWS, values=ROWS, mean=1.0)}
    differs, damaged = checked(tmp_path, pipeline=PipelineResult(gold=gold, faults=["a record is damaged"])).faults
    assert differs.startswith("T: the lake gives Gold(")
    assert damaged == "a record is damaged"
