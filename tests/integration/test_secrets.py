"""No secret of a run is seen by others, or in anything that it leaves."""

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives import serialization

from loadgen.brokers.certificates import CertificateFiles
from loadgen.brokers.ports import free_port
from tests.run.test_otlp import Receiver, receiver
from tests.secured_mosquitto import SecuredMosquitto, TlsFiles, run_secured

__all__ = ["receiver"]

SECRETS = {
    # Whatever form they are written in, the letters stay.
    "USERTOKEN": "USERTOKEN%41'\"ü@/",
    "PASSCORE": " PASSCORE%41 'x\"ü:@/\\",
    "KEYPHRASE": "KEYPHRASE%41 '\"ü\\",
    "HEADERTOKEN": "HEADERTOKEN",
}
USER, PASSWORD, PHRASE, HEADER = SECRETS.values()


def secret_in(data: bytes) -> list[str]:
    return [core for core in SECRETS if core.encode() in data]


def contents(directory: Path) -> dict[str, bytes]:
    """What each file says, tables unpacked."""
    files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    tables = {path: pq.read_table(path) for path in files if path.suffix == ".parquet"}
    words = {f"{path} read": str(table.to_pydict()).encode() for path, table in tables.items()}
    metadata = {f"{path} schema": str(t.schema).encode() for path, t in tables.items()}
    return {str(path): data for path, data in files.items()} | words | metadata


def seen_of(process: psutil.Process) -> dict[str, bytes]:
    """What others of this user see of a process and its children; of environments the children's
    alone, since the first has its own from whoever gave it."""
    found = {}
    with suppress(psutil.Error):
        family = [process, *process.children(recursive=True)]
        for one in family:
            for name in ("cmdline", "environ")[: 1 if one is process else 2]:
                with suppress(OSError):
                    found[f"{one.pid} {name}"] = Path(f"/proc/{one.pid}/{name}").read_bytes()
            # Where somebody could connect: ports, and unix sockets with a name.
            for held in one.net_connections("all"):
                if held.status == psutil.CONN_LISTEN or (
                    isinstance(held.laddr, str) and held.laddr
                ):
                    found[f"listens {held.laddr}"] = b""
    return found


def with_passphrase(certificates: CertificateFiles, path: Path) -> Path:
    """The key of device 0, encrypted."""
    plain = Path(str(certificates.client_key).replace("{device}", "0")).read_bytes()
    encryption = serialization.BestAvailableEncryption(PHRASE.encode())
    kind = serialization.PrivateFormat.PKCS8
    key = serialization.load_pem_private_key(plain, None)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, encryption))
    return path


@asynccontextmanager
async def secured(
    certificates: CertificateFiles, tmp_path: Path
) -> AsyncIterator[tuple[SecuredMosquitto, list[str], dict[str, str]]]:
    """A broker that wants user, password and certificate; options and environment for it."""
    encrypted = with_passphrase(certificates, tmp_path / "encrypted.key")
    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text(f"{PASSWORD}\n")
    files = TlsFiles(certificates.certificate, certificates.key, certificates.authority, True)
    async with run_secured(tls=files, username=USER, password=PASSWORD) as broker:
        options = [
            *("--broker", f"mqtts://localhost:{broker.endpoints[0].port}"),
            *("--user", "env:LOADGEN_TEST_USER", "--password", f"file:{password}"),
            *("--tls-passphrase", "env:LOADGEN_TEST_PHRASE"),
            *("--tls-ca", str(certificates.authority), "--tls-key", str(encrypted)),
            *("--tls-certificate", str(certificates.client_certificate).replace("{device}", "0")),
        ]
        environment = {
            "LOADGEN_TEST_USER": USER,
            "LOADGEN_TEST_PHRASE": PHRASE,
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={HEADER}",
            "TMPDIR": str(tmp_path),
        }
        yield broker, options, environment


async def called(
    *words: str, environment: dict[str, str], port: int | None = None
) -> tuple[int, bytes, dict[str, bytes]]:
    """Status, all that it says, and what was seen of it while it ran."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    family = psutil.Process(process.pid)
    seen: dict[str, bytes] = {}
    ended = asyncio.ensure_future(process.communicate())
    while not ended.done():
        seen |= seen_of(family)
        if port is not None:
            for path in {"metrics", ""} - {name[1:] for name in seen}:
                with suppress(OSError):
                    seen[f"/{path}"] = await asyncio.to_thread(_fetched, port, path)
        await asyncio.sleep(0.05)
    said, told = await ended
    assert process.returncode is not None
    return process.returncode, said + told, seen


def _fetched(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
        data = answer.read()
        assert isinstance(data, bytes)
        return data


async def test_nothing_that_a_run_leaves_or_shows_has_a_secret(
    tmp_path: Path, certificates: CertificateFiles, receiver: Receiver
) -> None:
    out, port = tmp_path / "run", free_port("127.0.0.1")
    async with secured(certificates, tmp_path) as (_, options, environment):
        status, said, seen = await called(
            *("fanin", "--devices", "4", "--rate", "40", "--warmup", "0", "--duration", "1.5"),
            *("--workers", "2", "--per-device", "--json", "--out", str(out), *options),
            *("--metrics", f":{port}", "--otlp", receiver.url),
            environment=environment,
            port=port,
        )
        probed, answer, around = await called("probe", *options, environment=environment)
        planned, plan, _ = await called("plan", "fanin", *options, "--json", environment={})
    assert (status in (0, 1), probed, planned) == (True, 0, 0), (said, answer, plan)
    # They were used: broker and collector had them.
    card = json.loads((out / "scorecard.json").read_text())
    assert card["counts"]["connects"] == 5
    assert receiver.headers[0]["authorization"] == HEADER
    labels = (("event", "sent"), ("group", "publishers"), ("phase", "measure"))
    exported = receiver.samples()["loadgen_messages_total", labels]
    assert exported == card["ledger"]["window"]["sent"] > 0
    left = contents(out)
    for name, data in {
        "said": said,
        "probe": answer,
        "plan": plan,
        **seen,
        **around,
        **left,
    }.items():
        assert not secret_in(data), name
    assert {"/metrics", "/"} <= seen.keys()
    assert sum(name.endswith("environ") for name in seen) >= 3
    assert {"run.json", "scorecard.html", "scorecard.csv", "events.jsonl"} <= {
        Path(name).name for name in left
    }
    document = json.loads((out / "run.json").read_text())
    assert document["broker"]["urls"][0].startswith("mqtts://***:***@localhost:")
    assert document["scenario"]["password"].startswith("file:")
    assert document["command"][document["command"].index("--user") + 1] == "env:LOADGEN_TEST_USER"
    # Nobody else can look, or connect to any of us.
    listens = {name for name in (*seen, *around) if name.startswith("listens")}
    assert len(listens) == 1 and f"port={port})" in listens.pop()
    modes = {path: path.stat().st_mode & 0o777 for path in (out, *out.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"LOADGEN_TEST_USER": f"{USER}x"}, b"user and password"),
        ({"LOADGEN_TEST_PHRASE": f"{PHRASE}x"}, b"TLS cannot be set up"),
    ],
)
async def test_a_wrong_secret_is_one_line_without_it(
    tmp_path: Path, certificates: CertificateFiles, wrong: dict[str, str], told: bytes
) -> None:
    out = tmp_path / "run"
    async with secured(certificates, tmp_path) as (_, options, environment):
        status, said, _ = await called(
            "fanin", "--quiet", "--out", str(out), *options, environment={**environment, **wrong}
        )
    assert status in (2, 3)
    assert told in said and said.count(b"\n") == 1 and not secret_in(said)
    assert not out.exists()


async def test_a_password_in_a_scenario_file_stays_there(
    tmp_path: Path, certificates: CertificateFiles
) -> None:
    file, out = tmp_path / "s.toml", tmp_path / "run"
    async with run_secured(username="u", password=PASSWORD) as broker:
        login = f"u:{quote(PASSWORD, safe='')}"
        file.write_text(f'broker = "mqtt://{login}@{broker.endpoints[0].address}"\n')
        file.chmod(0o644)
        status, said, seen = await called(
            *("connburst", "--devices", "3", "--warmup", "0", "--duration", "1"),
            *("--quiet", "--scenario", str(file), "--out", str(out)),
            environment={},
        )
    assert status in (0, 1)
    assert b"s.toml, which has a password; use chmod 600" in said
    for name, data in {"said": said, **seen, **contents(out)}.items():
        assert not secret_in(data), name
