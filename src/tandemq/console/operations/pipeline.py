"""The data pipeline: state of its files on disk, and the ends of the logs that the brokers report."""

from dataclasses import dataclass

from tandemq.console.pipeline_files import ArchivedLog, LakeStatus, PipelineStatus, read_pipeline
from tandemq.console.services import Console


@dataclass(frozen=True, slots=True)
class ArchiveLag:
    """An archived log, and the end of the log of the group's master."""

    log: ArchivedLog
    log_end: int | None
    """End of the master's log, as of its last figures; None: unknown, or not a group of this cluster."""

    @property
    def behind(self) -> int | None:
        """Bytes of log that the lake does not have yet; None: unknown."""
        return None if self.log_end is None else max(0, self.log_end - self.log.position)


async def pipeline_status(console: Console) -> PipelineStatus:
    """Read the files that the console was started with."""
    return await console.run(read_pipeline, console.settings.pipeline)


async def archive_lags(console: Console, lake: LakeStatus) -> list[ArchiveLag]:
    """Return the archived logs of a lake by broker group. The ends of logs are up to some seconds old."""
    view = await console.watch.view()
    found = []
    for name, log in sorted(lake.logs.items()):
        group = view.group(name)
        master = group.master if group is not None else None
        found.append(ArchiveLag(log, master.log_end if master is not None else None))
    return found
