"""The data pipeline."""

from tandemq.console.api.operation import ApiCall
from tandemq.console.api.responses import (
    ArchivedState,
    CheckState,
    LakeState,
    PipelineState,
    ProjectState,
    QueryState,
)
from tandemq.console.operations.pipeline import archive_lags, pipeline_status
from tandemq.console.pipeline_files import CheckStatus, LakeStatus
from tandemq.console.query_files import QueryStatus


async def get_pipeline(call: ApiCall) -> PipelineState:
    """The lakes, checks and projects that the console was started with."""
    status = await pipeline_status(call.console)
    return PipelineState(
        lakes=[await _lake(call, one) for one in status.lakes],
        checks=[_check(one) for one in status.checks],
        projects=[
            ProjectState(path=str(one.path), error=one.error, queries=[_query(query) for query in one.queries])
            for one in status.projects
        ],
    )


async def _lake(call: ApiCall, lake: LakeStatus) -> LakeState:
    return LakeState(
        path=str(lake.path),
        error=lake.error,
        version=lake.version,
        commits=lake.commits,
        last_added=lake.committed_ms,
        last_compacted=lake.compacted_ms,
        messages=sum(lake.rows),
        bytes=lake.bytes,
        is_collected=lake.is_collected,
        logs=[
            ArchivedState(
                broker=one.log.broker,
                position=one.log.position,
                epoch=one.log.epoch,
                committed=one.log.at_ms,
                log_end=one.log_end,
                behind=one.behind,
            )
            for one in await archive_lags(call.console, lake)
        ],
    )


def _check(one: CheckStatus) -> CheckState:
    return CheckState(
        path=str(one.path),
        error=one.error,
        kind=one.kind,
        subject=one.subject,
        is_done=one.is_done,
        changed=one.changed_ms,
        bytes=one.bytes,
        records=one.records,
        faults=one.faults,
        first_fault=one.first_fault,
    )


def _query(one: QueryStatus) -> QueryState:
    return QueryState(
        name=one.name,
        is_declarative=one.is_declarative,
        error=one.error,
        state=one.state,
        batch=one.batch,
        is_pending=one.is_pending,
        at=one.at_ms,
        rows=one.rows,
        rows_per_second=one.rows_per_s,
        watermark=one.watermark_ms,
        state_rows=one.state_rows,
        state_bytes=one.state_bytes,
        late_rows=one.late_rows,
        behind=one.behind,
    )
