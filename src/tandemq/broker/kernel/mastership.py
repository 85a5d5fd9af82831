"""Whether state that was read from the log still holds."""

from tandemq.broker.kernel.kernel import Kernel


class Mastership:
    """The mastership for which a part has read its state from the log: an epoch, in which the log was not truncated."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without a mastership."""
        self._turn = kernel.turn
        self._log = kernel.store.log
        self._read_in = (-1, -1)

    def is_current(self) -> bool:
        """Return whether the mastership has not changed, so that the state read from the log holds."""
        return self._read_in == (self._turn.serving.epoch, self._log.truncations)

    def is_renewed(self) -> bool:
        """Take the present mastership; return whether it is new, so that the state has to be read again."""
        if self.is_current():
            return False
        self._read_in = (self._turn.serving.epoch, self._log.truncations)
        return True
