"""Whether state that was read from the log still holds."""

from tandemq.broker.kernel.kernel import Kernel


class Mastership:
    """The mastership for which a part has read its state from the log: an epoch, in which the log was not truncated."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin with none."""
        self._turn = kernel.turn
        self._log = kernel.store.log
        self._read_in = (-1, -1)

    def is_current(self) -> bool:
        """Whether it is the present one, so that what was read holds."""
        return self._read_in == (self._turn.serving.epoch, self._log.truncations)

    def is_renewed(self) -> bool:
        """Take the present one; return whether it is another than before, so that everything has to be read again."""
        if self.is_current():
            return False
        self._read_in = (self._turn.serving.epoch, self._log.truncations)
        return True
