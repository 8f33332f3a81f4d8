"""Sentences about power logs."""

from typing import Any

from loadgen.errors import PowerLogError
from loadgen.sentences import Sentences


class PowerMessage(Sentences):
    """Reasons why a power log, or an option for one, is refused; each names the way out."""

    UNREADABLE = "power log {log} cannot be read: {reason}"
    NO_SAMPLE = (
        "power log {log} has no sample; expected lines below a header such as time,Power (W)"
    )
    NOT_A_TABLE = (
        "power log {log} is not a table: write a line for each sample below a header such as "
        "time,Power (W), or describe it with --pdu-format; it has: {header}"
    )
    HEADER_MISSING = (
        "power log {log} has no header: add a line such as time,Power (W) above: {header}"
    )
    HEADER_UNKNOWN = (
        "power log {log} has an unknown header: name its columns with --pdu-columns "
        "time=NAME,watts=NAME; it is: {header}"
    )
    NO_COLUMN = "power log {log} has no column {column!r}; its header is: {header}"
    NO_WATTS = (
        "power log {log} has no watts, and others cannot be converted to them ({columns}): log "
        "real power in W, or energy in Wh"
    )
    NO_TIME = (
        "power log {log} has no column of time: name it with --pdu-columns time=NAME, and "
        "start=TIME if it counts seconds from a start; its header is: {header}"
    )
    SEVERAL_COLUMNS = (
        "power log {log} has several columns of the same {key} ({titles}): give --pdu-columns "
        "{key}=NAME"
    )
    ONLY_STATISTICS = (
        "power log {log} has no momentary watts, but {titles}: give --pdu-columns watts=NAME"
    )
    DIFFERENT_KINDS = (
        "power log {log} has watts of several kinds ({names}), one of which may contain another: "
        "choose with {log}#NAME,... or with --pdu-columns watts=NAME+NAME"
    )
    SUM_OF_OTHERS = (
        "power log {log}: {name!r} is the sum of other outlets: choose with {log}#NAME,... among "
        "{names}"
    )
    UNIT_MISSING = (
        "power log {log} does not say the unit of {column!r}: add it to the header, or give "
        "--pdu-columns {unit_key}={choices}"
    )
    UNIT_UNCLEAR = (
        "power log {log}: the unit of {column!r} may be milli or mega: give --pdu-columns "
        "{key}=NAME,{unit_key}={choices}, or convert it"
    )
    UNIT_SCALED = "power log {log}: {column!r} counts parts of a unit: convert it to W or kWh"
    UNIT_CONTRADICTED = (
        "power log {log} says the unit of {column!r} itself: leave {unit_key}={unit} out"
    )
    NOT_THE_QUANTITY = "power log {log}: {column!r} is not {quantity}: name another with {key}=NAME"
    NO_COUNTER = (
        "power log {log}: the energy of outlet {name!r} {why}: give --pdu-columns interval=NAME if "
        "it is that of each interval, or write Total in the title of a counter"
    )
    DATES_UNCLEAR = (
        "power log {log} has dates such as {date!r}: give --pdu-columns dates=dmy, mdy or ymd"
    )
    MARK_UNCLEAR = (
        "power log {log} has numbers such as {number!r}: give --pdu-columns decimal=point or comma"
    )
    MARKS_MIXED = "power log {log} has {number!r} and {other!r}: write all with one decimal mark"
    MARK_CONTRADICTED = (
        "power log {log} has numbers such as {number!r}: leave decimal={decimal} out"
    )
    LINE_WIDTH = "power log {log}, line {line}: {width} columns instead of {expected}: {text!r}"
    LINE_LONG = "power log {log}, line {line}: over {most:,} characters; is it a power log?"
    LINE_JSON = "power log {log}, line {line}: no valid JSON; remove or complete it: {text!r}"
    LINE_TIME = (
        "power log {log}, line {line}: {text!r} is not a date and time: give --pdu-columns "
        "format=%d.%m.%Y %H:%M:%S, or start=TIME if it counts seconds"
    )
    LINE_NUMBER = (
        "power log {log}, line {line}: {column} {text!r} is not a number of 0 or more; correct it, "
        "or leave it empty"
    )
    LINE_QUANTITY = (
        "power log {log}, line {line}: {column} {text!r} is not {quantity}; name another column"
    )
    TOO_LARGE = (
        "power log {log} has {watts:g} watts at outlet {name!r}: correct --pdu-columns unit=W"
    )
    TWICE = (
        "power log {log} has a second sample of outlet {name!r} at {time}: if a column tells "
        "outlets apart, give --pdu-columns outlet=NAME"
    )
    OVERLAP = (
        "power log {log} goes back in time between samples of outlet {name!r}, to {time}: if it "
        "has several outlets, give --pdu-columns outlet=NAME or a file for each; else sort it"
    )
    BURSTS = (
        "power log {log} has samples of outlet {name!r} in groups, as at {time}: if each is of "
        "another outlet, give --pdu-columns outlet=NAME; if it has changes only, hold=change"
    )
    IN_TURN = (
        "power log {log} has samples of outlet {name!r} with {first!r} and {second!r} in turn in "
        "column {column!r}: give --pdu-columns outlet=NAME, or remove it"
    )
    TOO_MANY_OUTLETS = "power log {log} has over {most:,} outlets: give --pdu-columns outlet=NAME"
    NO_OUTLET = "power log {log} has no outlet {name!r}; choose among {names}"
    SEVERAL_OUTLETS = "power log {log} has several outlets {name!r}; choose among {names}"
    FOREIGN_ZONE = (
        "power log {log} has times of {named}, and they are read in {zone}: give --pdu-timezone "
        "the zone that it names"
    )
    ONLY_CHANGED_TIMES = (
        "power log {log} has only times at which the clock of {zone} is changed: log in UTC"
    )
    CLOCK_CHANGES = (
        "power log {log}: the clock of {zone} changes near {time}, within a day of the run: cut "
        "the log to one side of the change, or log in UTC"
    )
    COVERS_LITTLE = (
        "power log {log} covers {coverage:.0%} of the measurement window of {run}; at least "
        "{least:.0%} is needed: correct --pdu-timezone or --pdu-offset, or give hold=change"
    )
    SAME_SAMPLES = "power logs {first} and {second} have the same samples: name one of them"
    GIVEN_TWICE = "power log {log} is given twice: name each outlet once"
    OUTLET_UNNAMED = "power log {log}: an outlet after # has no name: write FILE#NAME,NAME"
    OFFSET = "pdu_offset: {reason}; expected a time such as 1.5s or -2s, of at most a year"
    COLUMNS_KEY = "pdu_columns: {part!r} is not KEY=VALUE; expected keys: {keys}"
    COLUMNS_TWICE = "pdu_columns: {key} is given twice: name several titles as A+B"
    CHOICE = "pdu_columns: {key}={value}: expected one of {choices}"
    FORMAT_FILE = "pdu_format: {file} cannot be read: {reason}; expected TOML as in the manual"
    FORMAT_KEY = "pdu_format: {file}: {key!r} in {name!r} is not a key and value as in the manual"
    ZONE_UNKNOWN = "pdu_timezone {zone!r} is not a time zone; expected Europe/Berlin, UTC or such"
    HOST_ZONE_UNKNOWN = "this host's time zone has no name: give --pdu-timezone UTC or another"
    NO_WINDOW = "the window {window} must end after its start: correct --from or --to"
    NO_MOMENT = "{text!r} is not a time; expected one such as 2026-11-23T10:00:00Z"


class LogError(ValueError):
    """A log that cannot be used; `values` are those of the sentence without the log's name."""

    def __init__(self, sentence: PowerMessage, **values: Any) -> None:
        super().__init__(sentence.name)
        self.sentence, self.values = sentence, values

    def of(self, log: str) -> PowerLogError:
        return PowerLogError(self.sentence(log=log, **self.values))


class PowerRemark(Sentences):
    """Notes on the watts of an outlet that can be used."""

    FEW_SAMPLES = "{name} has {samples:sample|samples} inside the window"
    ZONE_ASSUMED = (
        "the times of {log} were read as those of {zone}, the zone of this host (--pdu-timezone "
        "names another)"
    )
    RESET = "the counter of {name} was reset in the window"
    STEP = "a step of the {figure} of {name} is {share:.1%} of the mean"
    OUTLIER = "{name} has a sample of {watts:,.4g} W, over ten times its median of {median:,.4g} W"
    ALTERNATING = (
        "{name} alternates between about {low:,.4g} W and {high:,.4g} W: is it of two outlets?"
    )
    ZEROS = "{name} has {zeros:sample|samples} of 0 W between others"
    EDGES = (
        "the watts of {name} are averages: at each edge of the window up to {seconds:g} s may be "
        "of another time (stamp={stamp})"
    )
    UNUSED = "not used of {log}: {columns}"
    COVERS = "the watts of {log} are those of {covers}"


class WithheldPower(Sentences):
    """Reasons why the watts of an outlet cannot be used."""

    COUNTER_DISAGREES = (
        "the counter of {name} counted {counter_kwh:.4g} kWh, and the watts make {watts_kwh:.4g} "
        "kWh (is a unit or a time zone wrong?)"
    )
    COUNTER_COARSE = (
        "{name} has a counter alone, which counted {counter_kwh:.4g} kWh in steps of "
        "{step_kwh:.4g} kWh: too coarse for a mean"
    )
    WATTS_COARSE = (
        "the watts of {name} have steps of {step:.4g} W, {share:.0%} of the mean: too coarse"
    )
    TINY = "{name} has {watts:.2g} W: too little for a machine (is the unit wrong?)"
