"""The disclosure of a run: the submission data and files that a tool can fill.

Sections and keys are those of the run rules, sections 6.1 and 7, in their order. Values that only
the person who ran the test can provide are marked FILL IN. Pure: documents in, texts out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from loadgen.plan.disclosure import FinishedRun
from loadgen.specjms.chain_model import NOTICE
from loadgen.specjms.repetition import shortfalls, valid, verdict_of
from loadgen.specjms.report import TRANSACTIONS
from loadgen.specjms.rules import REPETITION

FILL_IN: Final = "FILL IN"
JsonObject = Mapping[str, Any]
Blocks = Mapping[str, Mapping[str, str]]
"""Values of the keys of each block, as far as a tool can determine them."""

_SERVER_CPUS = "server.cpus.num_cores server.cpus.num_chips server.cpus.num_coresperchip"
_PRODUCT = "id name vendor os avail"
_HARDWARE = (
    "id name vendor model processor mhz available filesystem disks networkInterface others "
    "cpu.num_cores cpu.num_chips cpu.num_coresperchip memory.size cache.l1 cache.l2 cache.others "
    "os.name os.vendor os.available systems.num notes"
)
_FORM: Final[Mapping[str, Mapping[str, str]]] = {
    "benchmark-info": {
        "test-info": "submitter.name system.title submitter.spec_license submit.date.long "
        "result.noncompliant result.noncompliant.reason result.noncompliant.remedy",
        "sut": f"server.nodes {_SERVER_CPUS} server.instances "
        f"client.nodes {_SERVER_CPUS.replace('server', 'client')} client.jvms "
        f"db.nodes {_SERVER_CPUS.replace('server', 'db')} db.instances others",
        "general-notes": "steady.state.req recoverability.req storage.req other.info",
        "bom": "bom",
    },
    "product-info": {"jms-product": _PRODUCT, "jvm-product": _PRODUCT},
    "hardware-info": {"jms-server": _HARDWARE, "client-node": _HARDWARE},
    "node-info": {
        "jms-server-node": "id name product.jms.id product.jvm.id product.jdbc.id product.other.id "
        "hw.id instances notes",
        "client-node": "id name product.jvm.id jvm.instances product.other.id hw.id instances "
        "agents notes",
        "other-node": "id name product.other.id hw.id instances notes",
    },
}
"""Sections of submission.xml, their blocks, and the keys of each block."""


@dataclass(frozen=True, slots=True)
class Disclosed:
    """The run that is disclosed, and its repetition, if any."""

    main: FinishedRun
    repeat: FinishedRun | None = None

    @property
    def run(self) -> JsonObject:
        """run.json of the main run."""
        return self.main.run

    @property
    def supply(self) -> JsonObject:
        """specjms.json of the main run."""
        return self.main.document

    def part(self, name: str) -> JsonObject:
        """Return a table of run.json, empty if the run lacks it."""
        return self.run.get(name) or {}


def disclosed_files(main: FinishedRun, repeat: FinishedRun | None) -> dict[str, str]:
    """Return the texts of the disclosure, by their names in its archive."""
    disclosed = Disclosed(main, repeat)
    return {
        "submission/submission.xml": submission(disclosed),
        "destinationSetup.txt": destination_setup(disclosed),
        "JMSServerConfig/serverSetup.txt": server_setup(disclosed),
        "ProviderModule/README.txt": "No provider module: the harness speaks MQTT itself.\n",
    }


def submission(disclosed: Disclosed) -> str:
    """Return submission.xml: benchmark-info, product-info, hardware-info and node-info."""
    sections = {
        "benchmark-info": _benchmark(disclosed),
        "product-info": _products(disclosed),
        "hardware-info": _hardware(disclosed),
        "node-info": _nodes(disclosed),
    }
    root = ElementTree.Element("submission")
    root.append(ElementTree.Comment(f" {escape(NOTICE)} "))
    for section, blocks in _FORM.items():
        element = ElementTree.SubElement(root, section)
        for name, keys in blocks.items():
            block = ElementTree.SubElement(element, "properties", {"name": name})
            values = sections[section].get(name, {})
            for key in keys.split():
                entry = ElementTree.SubElement(block, "property", {"key": key})
                entry.text = _printable(values.get(key, FILL_IN))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _printable(text: str) -> str:
    """Return text that XML 1.0 may hold."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _text(value: object) -> str:
    return str(value or FILL_IN)


def _benchmark(disclosed: Disclosed) -> Blocks:
    plan = disclosed.part("plan")
    return {
        "test-info": {
            "result.noncompliant": "yes",
            "result.noncompliant.reason": "; ".join(_noncompliance(disclosed)),
            "result.noncompliant.remedy": "",
        },
        "sut": {
            "server.instances": str(len(disclosed.part("broker").get("urls") or [1])),
            "client.nodes": str(plan.get("hosts") or 1),
            "client.cpus.num_cores": _text(disclosed.part("environment").get("cores")),
            "client.jvms": f"0 (worker processes: {_text(plan.get('workers'))})",
            **{key: "0" for key in _FORM["benchmark-info"]["sut"].split() if key.startswith("db.")},
        },
        "general-notes": {
            "other.info": "\n".join((NOTICE, TRANSACTIONS, *_result_lines(disclosed)))
        },
    }


def _noncompliance(disclosed: Disclosed) -> list[str]:
    """Return all reasons against compliance that a tool can determine."""
    main, repeat = disclosed.main, disclosed.repeat
    broken = [] if valid(main) else [f"main run {verdict_of(main)}"]
    if repeat is not None:
        broken += shortfalls(main, repeat)
    broken += [
        f"the {name} carries no seal, so later changes to it cannot be ruled out"
        for name, finished in (("main run", main), ("repetition", repeat))
        if finished is not None and not finished.sealed
    ]
    broken += [
        rule["rule"] + (" was not judged" if rule["kept"] is None else "")
        for rule in main.document["rules"]
        if rule["kept"] is not True and rule["rule"] != REPETITION
    ]
    audit = main.document["audit"]
    broken += [f"audit test {name}" for name, test in audit.items() if not test["pass"]]
    if repeat is None:
        broken.append("no repetition (3.4)")
    return broken


def _result_lines(disclosed: Disclosed) -> list[str]:
    lines = []
    for name, finished in (("main run", disclosed.main), ("repetition", disclosed.repeat)):
        if finished is None:
            lines.append(f"{name}: none in this bundle")
            continue
        supply = finished.document
        passed = all(test["pass"] for test in supply["audit"].values())
        lines.append(
            f"{name}: {supply['topology']} topology, BASE {supply['base']}, "
            f"{supply['window_s']:.0f} s measured, audit {'passed' if passed else 'failed'}, "
            f"{verdict_of(finished)}{'' if finished.sealed else ', not sealed'}"
        )
    return lines


def _products(disclosed: Disclosed) -> Blocks:
    broker, environment = disclosed.part("broker"), disclosed.part("environment")
    system = _text(environment.get("os"))
    name = f"{broker.get('name') or ''} {broker.get('version') or ''}".strip()
    program = _text(disclosed.run.get("program"))
    return {
        "jms-product": {
            "id": "jms",
            "name": f"{_text(name)} ({broker.get('protocol') or ''})",
            "os": system if broker.get("started_by_us") else FILL_IN,
        },
        "jvm-product": {
            "id": "harness",
            "name": f"{program}, CPython {environment.get('python') or ''} (no JVM)",
            "os": system,
        },
    }


def _hardware(disclosed: Disclosed) -> Blocks:
    environment = disclosed.part("environment")
    server = {"id": "server"}
    if disclosed.part("broker").get("started_by_us"):
        server["notes"] = "The broker ran on the client node, which a submission must not do (3.9)."
    return {
        "jms-server": server,
        "client-node": {
            "id": "client",
            "name": _text(environment.get("host")),
            "processor": _text(environment.get("cpu_model")),
            "cpu.num_cores": _text(environment.get("cores")),
            "memory.size": _text(int(environment.get("memory_bytes") or 0) >> 20),
            "os.name": f"{_text(environment.get('os'))}, kernel {environment.get('kernel') or ''}",
            "systems.num": str(disclosed.part("plan").get("hosts") or 1),
        },
    }


def _nodes(disclosed: Disclosed) -> Blocks:
    plan, environment = disclosed.part("plan"), disclosed.part("environment")
    locations = disclosed.supply["locations"]
    tuning = [f"{key} = {value}" for key, value in (environment.get("sysctl") or {}).items()]
    return {
        "jms-server-node": {
            "id": "server",
            "product.jms.id": "jms",
            **dict.fromkeys(("product.jvm.id", "product.jdbc.id", "product.other.id"), "none"),
            "hw.id": "server",
        },
        "client-node": {
            "id": "client",
            "name": _text(environment.get("host")),
            "product.jvm.id": "harness",
            "jvm.instances": _text(plan.get("workers")),
            "product.other.id": "none",
            "hw.id": "client",
            "instances": str(plan.get("hosts") or 1),
            "agents": ", ".join(f"{count} {kind}" for kind, count in locations.items()),
            "notes": "\n".join((" ".join(map(str, disclosed.run.get("command") or ())), *tuning)),
        },
    }


def destination_setup(disclosed: Disclosed) -> str:
    """Return destinationSetup.txt, a list of the destinations; MQTT needs no set-up of them."""
    lines = [
        NOTICE,
        "",
        "Topics and shared subscriptions of MQTT come into being when they are used: nothing was",
        "set up beforehand. The destinations of this run with their topics at the broker, and",
        "messages sent to each in the window:",
        "",
    ]
    lines += [
        f"{row['destination']:<32} {row['message']:<20} {row['topic']:<48} {row['sent']:>10,}"
        for row in disclosed.supply["destinations"]
    ]
    return "\n".join(lines) + "\n"


def server_setup(disclosed: Disclosed) -> str:
    """Return JMSServerConfig/serverSetup.txt."""
    broker = disclosed.part("broker")
    lines = [
        f"Broker: {_text(broker.get('name'))} {broker.get('version') or ''}",
        f"Addresses: {_text(', '.join(map(str, broker.get('urls') or [])))}",
        f"Protocol: {_text(broker.get('protocol'))}",
    ]
    if broker.get("started_by_us"):
        program = disclosed.run.get("program") or "the harness"
        lines.append(f"It was started and configured by {program} for this run.")
    lines.append(f"Steps to set up and configure the server: {FILL_IN}")
    return "\n".join(map(_printable, lines)) + "\n"
