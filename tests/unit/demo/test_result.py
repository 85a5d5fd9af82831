"""The result of the demo: exactly the failed checks are faults."""

from pathlib import Path
from typing import Any

import pytest

from tandemq.coordination.registry.records import Mode
from tandemq.demo import rows, scenario
from tandemq.demo.narration import Narration
from tandemq.demo.statistics import TagStatistics

ROWS = 20
GOOD = {
    "sent": ROWS,
    "acknowledged": ROWS,
    "delivered": ROWS,
    "consumed_meanwhile": 5,
    "slave_was_read": True,
    "seconds_without_writes_of_killed_group": 2.0,
}


def checked(path: Path, *, read: int = ROWS, **changes: Any) -> scenario.DemoResult:
    """Return the result of a demo without faults but for the changes, with `read` rows among the consumer's."""
    (path / "rows.csv").write_text("tag,delay\n" + "".join(f"T,{number}\n" for number in range(ROWS)))
    source = rows.from_file(path / "rows.csv", rows.ColumnChoice(value="delay"))
    values = list(source.values())
    options = scenario.DemoOptions(source, path, has_pipeline=False, mode=Mode.ELECT)
    demo = scenario._Demo(options, TagStatistics("delay").add_all(values), path, Narration(to_error=True))
    demo._seen.add_all(values[:read])
    demo._result = scenario.DemoResult(Mode.ELECT.value, **(GOOD | changes))
    return demo.check()


def test_successful_demo_has_no_faults(tmp_path: Path) -> None:
    assert checked(tmp_path).faults == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"missing": 1, "delivered": ROWS - 1}, "1 acknowledged messages are missing"),
        ({"acknowledged": ROWS - 2, "delivered": ROWS - 2}, "2 messages were sent but not acknowledged"),
        ({"sent": ROWS - 3, "acknowledged": ROWS - 3, "delivered": ROWS - 3}, "3 rows were not sent"),
        ({"delivered": ROWS + 1}, "1 messages were delivered but never acknowledged"),
        ({"slave_was_read": False}, "broker-a was not read from its slave"),
        ({"consumed_meanwhile": 0}, "no message of broker-a was consumed while its master was dead"),
        (
            {"seconds_without_writes_of_killed_group": None},
            "broker-a accepted no message while its old master was dead",
        ),
        ({"replica_differences": ["broker-b: a file"]}, "replicas: broker-b: a file"),
    ],
)
def test_failed_check_is_the_only_fault(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    assert checked(tmp_path, **changes).faults == [fault]


def test_figures_that_differ_from_the_files_are_a_fault(tmp_path: Path) -> None:
    [fault] = checked(tmp_path, read=ROWS - 1).faults
    assert fault.startswith("T: the messages give Figures(rows=19")
