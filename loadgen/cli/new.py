"""`loadgen new FILE`: a scenario file for `loadgen run`, from the answers to five questions."""

import typer

from loadgen.cases.registry import build_scenario, resolve
from loadgen.cli.options import Flags, declared, write_new
from loadgen.errors import ScenarioError, UsageError
from loadgen.plan.groups import wildcard_of
from loadgen.plan.scenario import toml_lines
from loadgen.sentences import CLI_TEXT

_TEXT = """\
# Groups of devices; run them with `loadgen run FILE`.
# All keys of a group are in docs/reference/groups.md, and those above the groups in
# `loadgen run --help-all`.

# Seconds of the window that counts, and of the load before it.
duration = 30
warmup = 5
# Address of the broker; `auto` starts one on this host.
broker = "auto"
{run}
# Devices that publish: {{device}} is the number of a device, and `rate` is in messages a second of
# the entire group.
[[group]]
{publishers}"""
_SUBSCRIBERS = """
# Devices that each receive all messages.
[[group]]
{subscribers}"""

_OPTIONS = {
    "group 1.count": "--devices",
    "group 1.rate": "--rate",
    "group 2.count": "--subscribers",
}
"""Options with the values of a group's fields."""


def write_scenario(flags: Flags) -> int:
    path = flags["file"]
    if path.exists():
        raise UsageError(CLI_TEXT.EXISTS(path=path))
    write_new(path, _scenario_text(_answers(flags)))
    print(f"loadgen run {path}")
    return 0


def _answers(flags: Flags) -> dict[str, str]:
    answers: dict[str, str] = {}
    for question in declared("new"):
        name, option = question.name, question.annotation.__metadata__[0]
        if name == "file":
            continue
        text, _, default = option.help.rpartition(" [default: ")
        answer = flags[name]
        if answer is None:
            try:
                answer = typer.prompt(text.rstrip("."), default=default.rstrip("]"), err=True)
            except typer.Abort as ended:
                if isinstance(ended.__context__, EOFError):
                    typer.echo(err=True)  # the question has no end of line
                    raise UsageError(CLI_TEXT.INPUT_ENDED(option=f"--{name}")) from None
                raise
        answers[name] = answer
    return answers


def _scenario_text(answers: dict[str, str]) -> str:
    """Return the file; raise ScenarioError for answers that `loadgen run` would refuse."""
    groups = [
        {
            "name": "publishers",
            "count": answers["devices"],
            "topic": answers["topic"].replace("{group}", "publishers"),
            "rate": answers["rate"],
        }
    ]
    if answers["subscribers"] != "0":
        filters = wildcard_of(groups[0]["topic"])
        groups.append(
            {"name": "subscribers", "count": answers["subscribers"], "subscribe": filters}
        )
    try:
        scenario = build_scenario("run", {"group": groups}, {"qos": answers["qos"]})
        resolve(scenario)
    except ScenarioError as error:
        name, colon, rest = str(error).partition(": ")
        raise UsageError(_OPTIONS.get(name, name) + colon + rest) from None
    publishers, *subscribers = map(toml_lines, scenario.tables)
    text = _TEXT.format(run=toml_lines({"qos": scenario.qos}), publishers=publishers)
    return text + "".join(_SUBSCRIBERS.format(subscribers=lines) for lines in subscribers)
