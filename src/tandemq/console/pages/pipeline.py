"""The data pipeline: lakes, checks, reports."""

from starlette.responses import Response

from tandemq.console.operations import pipeline as operations
from tandemq.console.pipeline_files import COMMITS_MAX, read_report
from tandemq.console.services import NotFound, wall_ms
from tandemq.console.visit import Visit


async def show(visit: Visit) -> Response:
    """Show the state of the pipeline."""
    console = visit.console
    found = await operations.pipeline_status(console)
    lags = [await operations.archive_lags(console, lake) for lake in found.lakes]
    return visit.page("pipeline.html", found=found, lags=lags, now_ms=wall_ms(), most=COMMITS_MAX)


async def report(visit: Visit) -> Response:
    """Return a report as a file: it has styles of its own, which pages of the console may not have."""
    reports, number = visit.console.settings.pipeline.reports, int(visit.part("number"))
    if number >= len(reports):
        raise NotFound("there is no such report")
    try:
        content = await visit.console.run(read_report, reports[number])
    except (OSError, ValueError) as error:
        raise NotFound("this report cannot be read") from error
    headers = {"content-disposition": f'attachment; filename="report-{number}.html"'}
    return Response(content, headers=headers, media_type="text/html; charset=utf-8")
