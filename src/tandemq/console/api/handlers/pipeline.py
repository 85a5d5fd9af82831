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
        lakes=[await _lake(call, lake) for lake in status.lakes],
        checks=[_check(check) for check in status.checks],
        projects=[
            ProjectState(
                path=str(project.path), error=project.error, queries=[_query(query) for query in project.queries]
            )
            for project in status.projects
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
                broker=lag.log.broker,
                position=lag.log.position,
                epoch=lag.log.epoch,
                committed=lag.log.at_ms,
                log_end=lag.log_end,
                behind=lag.behind,
            )
            for lag in await archive_lags(call.console, lake)
        ],
    )


def _check(check: CheckStatus) -> CheckState:
    return CheckState(
        path=str(check.path),
        error=check.error,
        kind=check.kind,
        subject=check.subject,
        is_done=check.is_done,
        changed=check.changed_ms,
        bytes=check.bytes,
        records=check.records,
        faults=check.faults,
        first_fault=check.first_fault,
    )


def _query(query: QueryStatus) -> QueryState:
    return QueryState(
        name=query.name,
        is_declarative=query.is_declarative,
        error=query.error,
        state=query.state,
        batch=query.batch,
        is_pending=query.is_pending,
        at=query.at_ms,
        rows=query.rows,
        rows_per_second=query.rows_per_s,
        watermark=query.watermark_ms,
        state_rows=query.state_rows,
        state_bytes=query.state_bytes,
        late_rows=query.late_rows,
        behind=query.behind,
    )
