"""The manifests of docs/examples/kubernetes, against the fields of Kubernetes' API."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FIELDS: dict[str, dict[str, str]] = json.loads(
    (ROOT / "tests" / "data" / "kubernetes-fields.json").read_text()
)
"""The fields of each type that is used, with their types, from its Python client 37.0.2."""
PLAIN = {"str": str, "int": int, "bool": bool}


def faults(value: Any, kind: str, where: str) -> list[str]:
    kind = kind.rstrip("!")
    if several := re.fullmatch(r"[Ll]ist\[(.*)\]", kind):
        items = enumerate(value)
        return [one for at, item in items for one in faults(item, several[1], f"{where}.{at}")]
    if table := re.fullmatch(r"[Dd]ict[\[(]str, (.*)[\])]", kind):
        items = value.items()
        return [one for at, item in items for one in faults(item, table[1], f"{where}.{at}")]
    if kind not in FIELDS:
        return [] if type(value) is PLAIN.get(kind, type(value)) else [f"{where}: not {kind}"]
    known = FIELDS[kind]
    wrong = [f"{where}.{name}: not a field of {kind}" for name in value if name not in known]
    return wrong + [
        one
        for name, item in value.items()
        if name in known
        for one in faults(item, known[name], f"{where}.{name}")
    ]


@pytest.mark.parametrize("name", ["agents.yaml", "run.yaml", "spark.yaml"])
def test_manifests_have_fields_of_the_api(name: str) -> None:
    text = (ROOT / "docs" / "examples" / "kubernetes" / name).read_text()
    for document in yaml.safe_load_all(text):
        assert faults(document, f"V1{document['kind']}", document["kind"]) == []
        for template in document["data"].values() if document["kind"] == "ConfigMap" else ():
            pod = yaml.safe_load(template)
            assert faults(pod, "V1Pod", "pod") == []
            pod["spec"]["afinity"] = {}
            assert faults(pod, "V1Pod", "pod") == ["pod.spec.afinity: not a field of V1PodSpec"]
