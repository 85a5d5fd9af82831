"""A send that is refused."""

from tandemq.model.codes import ResponseCode


class SendRefused(Exception):
    """A refused send: code and remark of the response."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        """Keep the response's code and remark."""
        super().__init__(remark)
        self.code = code
        self.remark = remark
