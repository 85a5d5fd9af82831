"""Commands and their responses."""

from tandemq.model.command import Command


def test_answer_has_the_opaque_and_form_of_its_request() -> None:
    request = Command(10, opaque=-7, flag=0, binary=True)
    answer = request.answer(14, remark="full", fields={"a": "b"}, body=b"x")
    assert (answer.code, answer.opaque, answer.flag, answer.remark) == (14, -7, 1, "full")
    assert answer.fields == {"a": "b"}
    assert answer.body == b"x"
    assert answer.binary
    assert answer.is_response
    assert not answer.is_oneway


def test_flags_are_distinguished() -> None:
    assert Command(1, flag=2).is_oneway
    assert not Command(1, flag=2).is_response
    assert Command(1, flag=3).is_response
