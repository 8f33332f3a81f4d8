"""The report of a history: a chart for each figure that is followed."""

from collections.abc import Sequence
from dataclasses import asdict

from loadgen.report.build.figures import COLORS, axis, chart, layout, line
from loadgen.report.build.rows import FIGURES
from loadgen.report.history import Course
from loadgen.report.model import Chart, Charts, Report
from loadgen.report.render.text import name


def history_report(courses: Sequence[Course], rolling: int) -> Report:
    """Return the report of these courses; `rolling` is the number of runs in the mean."""
    return Report(
        title="History",
        heading="History",
        lead=(Charts(lambda: [_chart(course, rolling) for course in courses]),),
        document=[asdict(course) for course in courses],
    )


def _chart(course: Course, rolling: int) -> Chart:
    column = FIGURES[course.column]
    points = [(point.started, point.value) for point in course.points]
    before = [(point.started, point.before) for point in course.points]
    hover = "%{y:,.4g} " + name(course.unit, 40)
    label = f"{course.name} {column}"
    return chart(
        f"{label} ({course.load[:6]})",
        f"{name(course.description, 200)} VALID runs of {course.case} of one load and load host, "
        f"and the mean of up to {rolling} runs before each.",
        [
            line(label, points, COLORS[0], hover, marked=True),
            line("mean before", before, COLORS[1], hover, dash="dot"),
        ],
        layout(xaxis=axis("started (UTC)", type="date"), yaxis=axis(course.unit)),
    )
