"""The sentences of errors about run directories and score cards."""

from loadgen.sentences import Sentences


class Message(Sentences):
    """Errors; `where` names the directory, with the file in it."""

    NO_DIRECTORY = "{where} does not exist or is not a directory"
    NO_RECORD = "{where} has no run.json; is it the directory of a run?"
    NO_INTERVALS = "{where} has no interval files; the run measured nothing"
    NO_RUN = "no run directory is given"
    SAME_RUN = "run directories {first} and {second} hold the same run; name it once"
    FILE_TOO_LARGE = "{where} is too large to be one"
    FILE_UNREADABLE = "{where} cannot be read: {reason}"
    DAMAGED = "{where} is damaged: {reason}"
    CUT_OFF = "{where} is cut off or damaged: {reason}"
    LACKS = "{where} lacks {missing}"
    LACKS_COLUMN = "{where} lacks the column {column}"
    FILES_DIFFER = "{where}: interval files differ: {reason}"
    SCHEMA = "{where} has schema {schema!r}; this program understands {known}"
    OTHER_RUN = "{where} holds rows of another run: {other!r}, not {run!r}"
    EMPTY_WINDOW = (
        "run {run} has no rows in its {phase} window; it ended before anything was measured"
    )
    REVERSED_WINDOW = "run {run} has a {phase} window that ends before it starts"
    NO_WALL_CLOCK = "run {run} did not record its wall clock, so power logs cannot be joined"
    NO_BASELINE = "there is no baseline of case {case}"
    BASELINE_INVALID = "all runs of the baseline of case {case} are INVALID: give a VALID one"
    BASELINE_ALONE = "there is no run to compare with the baseline of case {case}"
    NOT_A_CARD = ("{where} is no scorecard.json of this version", ": {reason}")
    UNWRITABLE = "{kind} cannot be written to {directory}: {reason}"
