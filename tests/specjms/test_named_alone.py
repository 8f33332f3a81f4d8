"""Only its folder and its case name SPECjms: it is a case like the others."""

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "loadgen"
NAMES = re.compile("specjms|jms2009|supply", re.IGNORECASE)


def test_only_its_folder_and_its_case_name_it() -> None:
    outside = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if PACKAGE / "specjms" not in path.parents and path != PACKAGE / "cases" / "specjms.py"
        for line in path.read_text("utf-8").splitlines()
        if NAMES.search(line)
    ]
    assert outside == []
