"""A shell script that brings a host to a profile, for an administrator to read and run.

It only raises what is too low (or lowers what is too high), says each change with the old value,
and skips what the host does not have. Kernel values last until the next start of the host; what
is kept in a file is said. The text is in tuning_script.sh.j2.
"""

import shlex
import textwrap
from importlib.resources import files
from typing import Final

from jinja2 import Environment, StrictUndefined

from loadgen.run.tuning.profile import Profile

# As /proc/self/limits names them: shells differ in how they are asked for processes.
_LIMIT_TITLES: Final = {"nofile": "open files", "nproc": "processes"}


def render_script(profile: Profile, program: str) -> str:
    """Return the script's text; `program` is the name and version that made it."""
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters |= {"quote": shlex.quote, "comment": _comment}
    text = files("loadgen.run.tuning").joinpath("tuning_script.sh.j2").read_text("utf-8")
    template = environment.from_string(text)
    return template.render(program=program, profile=profile, limit_titles=_LIMIT_TITLES)


def _comment(text: str) -> str:
    wrapper = textwrap.TextWrapper(93, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"# {line}" for line in wrapper.wrap(text))
