"""The disclosure of a run: the submission data and files that a tool can fill.

Sections and keys are those of the run rules, sections 6.1 and 7, in their order. What only the
person who ran the test can know is marked FILL IN. Pure: documents in, texts out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from loadgen.specjms.model import NOTICE
from loadgen.specjms.repetition import Played, shortfalls, valid, verdict_of
from loadgen.specjms.report import TRANSACTIONS

__all__ = ["FILL_IN", "Disclosed", "destination_setup", "server_setup", "submission"]

FILL_IN: Final = "FILL IN"
Document = Mapping[str, Any]
Section = tuple[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Disclosed:
    """The run that is disclosed, and its repetition where there is one."""

    main: Played
    repeat: Played | None = None

    @property
    def run(self) -> Document:
        """run.json of the main run."""
        return self.main.run

    @property
    def supply(self) -> Document:
        """specjms.json of the main run."""
        return self.main.supply


def submission(found: Disclosed) -> str:
    """submission.xml: benchmark-info, product-info, hardware-info and node-info."""
    root = ElementTree.Element("submission")
    root.append(ElementTree.Comment(f" {escape(NOTICE)} "))
    for section, parts in _sections(found):
        element = ElementTree.SubElement(root, section)
        for name, properties in parts:
            block = ElementTree.SubElement(element, "properties", {"name": name})
            for key, value in properties.items():
                entry = ElementTree.SubElement(block, "property", {"key": key})
                entry.text = _printable(value)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _printable(text: str) -> str:
    """Text that XML 1.0 may hold."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _sections(found: Disclosed) -> Sequence[tuple[str, Sequence[Section]]]:
    return (
        ("benchmark-info", _benchmark(found)),
        ("product-info", _products(found)),
        ("hardware-info", _hardware(found)),
        ("node-info", _nodes(found)),
    )


def _benchmark(found: Disclosed) -> Sequence[Section]:
    run = found.run
    environment = run.get("environment") or {}
    plan = run.get("plan") or {}
    return (
        (
            "test-info",
            {
                "submitter.name": FILL_IN,
                "system.title": FILL_IN,
                "submitter.spec_license": FILL_IN,
                "submit.date.long": FILL_IN,
                "result.noncompliant": "yes",
                "result.noncompliant.reason": "; ".join(_noncompliance(found)),
                "result.noncompliant.remedy": "",
            },
        ),
        (
            "sut",
            {
                "server.nodes": FILL_IN,
                "server.cpus.num_cores": FILL_IN,
                "server.cpus.num_chips": FILL_IN,
                "server.cpus.num_coresperchip": FILL_IN,
                "server.instances": str(len((run.get("broker") or {}).get("urls") or [1])),
                "client.nodes": str(plan.get("hosts") or 1),
                "client.cpus.num_cores": str(environment.get("cores") or FILL_IN),
                "client.cpus.num_chips": FILL_IN,
                "client.cpus.num_coresperchip": FILL_IN,
                "client.jvms": f"0 (worker processes: {plan.get('workers') or FILL_IN})",
                "db.nodes": "0",
                "db.cpus.num_cores": "0",
                "db.cpus.num_chips": "0",
                "db.cpus.num_coresperchip": "0",
                "db.instances": "0",
                "others": FILL_IN,
            },
        ),
        (
            "general-notes",
            {
                "steady.state.req": FILL_IN,
                "recoverability.req": FILL_IN,
                "storage.req": FILL_IN,
                "other.info": "\n".join((NOTICE, TRANSACTIONS, *_result_lines(found))),
            },
        ),
        ("bom", {"bom": FILL_IN}),
    )


def _noncompliance(found: Disclosed) -> list[str]:
    """Everything that a tool can see of why the result is not compliant."""
    main, repeat = found.main, found.repeat
    broken = [] if valid(main) else [f"main run {verdict_of(main)}"]
    if repeat is not None:
        broken += shortfalls(main, repeat)
    broken += [
        f"the {name} carries no seal, so nobody can tell whether it was changed since it ended"
        for name, one in (("main run", main), ("repetition", repeat))
        if one is not None and not one.sealed
    ]
    broken += [rule["rule"] for rule in main.supply["rules"] if not rule["kept"]]
    audit = main.supply["audit"]
    broken += [f"audit test {name}" for name, test in audit.items() if not test["pass"]]
    if repeat is None:
        broken.append("no repetition (3.4)")
    broken.append("a harness other than the SPECjms2007 kit, over MQTT instead of JMS")
    return broken


def _result_lines(found: Disclosed) -> list[str]:
    lines = []
    for name, one in (("main run", found.main), ("repetition", found.repeat)):
        if one is None:
            lines.append(f"{name}: none in this bundle")
            continue
        supply = one.supply
        passed = all(test["pass"] for test in supply["audit"].values())
        lines.append(
            f"{name}: {supply['topology']} topology, BASE {supply['base']}, "
            f"{supply['window_s']:.0f} s measured, audit {'passed' if passed else 'failed'}, "
            f"{verdict_of(one)}{'' if one.sealed else ', not sealed'}"
        )
    return lines


def _products(found: Disclosed) -> Sequence[Section]:
    broker = found.run.get("broker") or {}
    environment = found.run.get("environment") or {}
    system = str(environment.get("os") or FILL_IN)
    name = f"{broker.get('name') or ''} {broker.get('version') or ''}".strip()
    protocol = broker.get("protocol") or ""
    return (
        (
            "jms-product",
            {
                "id": "jms",
                "name": f"{name or FILL_IN} ({protocol})",
                "vendor": FILL_IN,
                "os": system if broker.get("started_by_us") else FILL_IN,
                "avail": FILL_IN,
            },
        ),
        (
            "jvm-product",
            {
                "id": "harness",
                "name": f"{found.run.get('program') or FILL_IN}, CPython "
                f"{environment.get('python') or ''} (no JVM)",
                "vendor": FILL_IN,
                "os": system,
                "avail": FILL_IN,
            },
        ),
    )


_HARDWARE: Final = (
    *("id", "name", "vendor", "model", "processor", "mhz", "available", "filesystem", "disks"),
    *("networkInterface", "others", "cpu.num_cores", "cpu.num_chips", "cpu.num_coresperchip"),
    *("memory.size", "cache.l1", "cache.l2", "cache.others", "os.name", "os.vendor"),
    *("os.available", "systems.num", "notes"),
)


def _hardware(found: Disclosed) -> Sequence[Section]:
    environment = found.run.get("environment") or {}
    known = {
        "id": "client",
        "name": str(environment.get("host") or FILL_IN),
        "processor": str(environment.get("cpu_model") or FILL_IN),
        "cpu.num_cores": str(environment.get("cores") or FILL_IN),
        "memory.size": str(int(environment.get("memory_bytes") or 0) >> 20 or FILL_IN),
        "os.name": f"{environment.get('os') or FILL_IN}, kernel {environment.get('kernel') or ''}",
        "systems.num": str((found.run.get("plan") or {}).get("hosts") or 1),
    }
    here = (found.run.get("broker") or {}).get("started_by_us")
    server = dict.fromkeys(_HARDWARE, FILL_IN) | {"id": "server"}
    if here:
        server["notes"] = "The broker ran on the client node, which a submission must not do (3.9)."
    client = {key: known.get(key, FILL_IN) for key in _HARDWARE}
    return (("jms-server", server), ("client-node", client))


def _nodes(found: Disclosed) -> Sequence[Section]:
    plan = found.run.get("plan") or {}
    environment = found.run.get("environment") or {}
    locations = found.supply["locations"]
    tuning = [f"{key} = {value}" for key, value in (environment.get("sysctl") or {}).items()]
    return (
        (
            "jms-server-node",
            {
                "id": "server",
                "name": FILL_IN,
                "product.jms.id": "jms",
                "product.jvm.id": "none",
                "product.jdbc.id": "none",
                "product.other.id": "none",
                "hw.id": "server",
                "instances": FILL_IN,
                "notes": FILL_IN,
            },
        ),
        (
            "client-node",
            {
                "id": "client",
                "name": str(environment.get("host") or FILL_IN),
                "product.jvm.id": "harness",
                "jvm.instances": str(plan.get("workers") or FILL_IN),
                "product.other.id": "none",
                "hw.id": "client",
                "instances": str(plan.get("hosts") or 1),
                "agents": ", ".join(f"{count} {kind}" for kind, count in locations.items()),
                "notes": "\n".join((" ".join(map(str, found.run.get("command") or ())), *tuning)),
            },
        ),
        (
            "other-node",
            {
                "id": FILL_IN,
                "name": FILL_IN,
                "product.other.id": FILL_IN,
                "hw.id": FILL_IN,
                "instances": FILL_IN,
                "notes": FILL_IN,
            },
        ),
    )


def destination_setup(found: Disclosed) -> str:
    """destinationSetup.txt: MQTT destinations need no set-up; this is what there was."""
    lines = [
        NOTICE,
        "",
        "Topics and shared subscriptions of MQTT come into being when they are used: nothing was",
        "set up beforehand. The destinations of this run, and messages sent to each in the window:",
        "",
    ]
    lines += [
        f"{row['destination']:<40} {row['message']:<20} {row['sent']:>10,}"
        for row in found.supply["destinations"]
    ]
    return "\n".join(lines) + "\n"


def server_setup(found: Disclosed) -> str:
    """JMSServerConfig/serverSetup.txt."""
    broker = found.run.get("broker") or {}
    lines = [
        f"Broker: {broker.get('name') or FILL_IN} {broker.get('version') or ''}",
        f"Addresses: {', '.join(map(str, broker.get('urls') or [])) or FILL_IN}",
        f"Protocol: {broker.get('protocol') or FILL_IN}",
    ]
    if broker.get("started_by_us"):
        lines.append(
            f"It was started and configured by {found.run.get('program') or 'the harness'} for "
            "this run."
        )
    lines += [f"Steps to set up and configure the server: {FILL_IN}"]
    return "\n".join(map(_printable, lines)) + "\n"
