"""Brokers of other makers, started with every listener that they have, for tests and tables.

Each is found where its package puts it, and skipped if it is absent: Debian's mosquitto,
rabbitmq-server, ejabberd and activemq, nats-server from pip, and aedes from npm (with
aedes-server-factory and ws, in a folder that AEDES names or in node_modules here).
"""

import asyncio
import contextlib
import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates

from loadgen.brokers.ask import greet
from loadgen.brokers.certificates import CertificateFiles, make_certificates
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.mosquitto import find_mosquitto
from loadgen.brokers.nats import find_nats
from loadgen.brokers.ports import free_port
from loadgen.brokers.process import BrokerProcess, running, spawn
from loadgen.errors import CannotRunError, MissingProgramError

_READY_S: Final = 90.0  # those of Erlang and Java take their time
_ANSWER_S: Final = 10.0
_POLL_S: Final = 0.05
_LAST_WORDS: Final = 300


@dataclass(frozen=True, slots=True)
class Place:
    """Where a broker is to run: its folder, the address to listen on, a port for each scheme.

    `more_lines` end its configuration (of ejabberd that of mod_mqtt).
    """

    directory: Path
    host: str
    ports: Mapping[str, int]
    files: CertificateFiles
    more_lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """What to start: the arguments, program first, what its environment has beside ours.

    `afterwards` ends what it leaves running.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    afterwards: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Make:
    """A broker of some make: the program (None where absent), and how it is started.

    `path` is that of its WebSocket, `login` the user and password that it wants.
    """

    find: Callable[[], str | None]
    start: Callable[[str, Place], Start]
    schemes: tuple[str, ...] = ("mqtt", "mqtts", "ws", "wss")
    path: str = "/mqtt"
    login: tuple[str, str] | None = None


def _mosquitto(program: str, place: Place) -> Start:
    lines = ["log_dest stderr", "allow_anonymous true", "persistence false", "user root"]
    for scheme, port in place.ports.items():
        lines.append(f"listener {port} {place.host}")
        if scheme.startswith("ws"):
            lines.append("protocol websockets")
        if scheme.endswith("s") and scheme != "ws":
            lines += [f"certfile {place.files.certificate}", f"keyfile {place.files.key}"]
    lines += place.more_lines
    return Start((program, "-c", _written(place, "mosquitto.conf", lines)))


def _nats(program: str, place: Place) -> Start:
    # One listener a protocol, so a server is encrypted or it is not.
    tls = f'tls {{ cert_file: "{place.files.certificate}", key_file: "{place.files.key}" }}'
    encrypted = "mqtts" in place.ports
    secret = tls if encrypted else ""
    port, web = (place.ports[one] for one in (("mqtts", "wss") if encrypted else ("mqtt", "ws")))
    lines = [
        f"server_name: nats-{port}",
        f'listen: "127.0.0.1:{free_port("127.0.0.1")}"',
        f'jetstream {{ store_dir: "{place.directory}" }}',
        f'mqtt {{ host: "{place.host}", port: {port}, {secret} }}',
        f'websocket {{ host: "{place.host}", port: {web}, {secret or "no_tls: true"} }}',
    ]
    return Start((program, "-c", _written(place, "nats.conf", lines)))


def _rabbitmq(program: str, place: Place) -> Start:
    options = {
        "listeners.tcp": "none",
        "mqtt.allow_anonymous": "true",
        "mqtt.default_user": "guest",
        "mqtt.default_pass": "guest",
        "mqtt.listeners.tcp.1": f"{place.host}:{place.ports['mqtt']}",
        "mqtt.listeners.ssl.1": f"{place.host}:{place.ports['mqtts']}",
        "ssl_options.cacertfile": str(place.files.authority),
        "ssl_options.certfile": str(place.files.certificate),
        "ssl_options.keyfile": str(place.files.key),
        "web_mqtt.tcp.ip": place.host,
        "web_mqtt.tcp.port": str(place.ports["ws"]),
        "web_mqtt.ssl.ip": place.host,
        "web_mqtt.ssl.port": str(place.ports["wss"]),
        "web_mqtt.ssl.cacertfile": str(place.files.authority),
        "web_mqtt.ssl.certfile": str(place.files.certificate),
        "web_mqtt.ssl.keyfile": str(place.files.key),
    }
    config = _written(
        place, "rabbitmq.conf", [f"{name} = {value}" for name, value in options.items()]
    )
    names = str(free_port("127.0.0.1"))
    plugins = _written(place, "plugins", ["[rabbitmq_mqtt,rabbitmq_web_mqtt]."])
    environment = {
        "RABBITMQ_NODENAME": f"rabbit{place.ports['mqtt']}@localhost",
        "RABBITMQ_CONFIG_FILE": config,
        "RABBITMQ_ENABLED_PLUGINS_FILE": plugins,
        "RABBITMQ_MNESIA_BASE": str(place.directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(place.directory / "log"),
        "RABBITMQ_DIST_PORT": str(free_port("127.0.0.1")),
        "ERL_EPMD_PORT": names,
        "HOME": str(place.directory),
    }
    return Start((program,), environment, ("epmd", "-port", names, "-kill"))


def _ejabberd(program: str, place: Place) -> Start:
    lines = [
        "hosts: [localhost]",
        "loglevel: warning",
        f"certfiles: ['{_joined(place)}']",
        "auth_method: [anonymous]",
        "anonymous_protocol: login_anon",
        "allow_multiple_connections: true",
        "listen:",
    ]
    for scheme, port in place.ports.items():
        lines += [f"  - port: {port}", f"    ip: '{place.host}'"]
        lines += (
            ["    module: ejabberd_http", "    request_handlers: {/mqtt: mod_mqtt}"]
            if (scheme.startswith("ws"))
            else ["    module: mod_mqtt", "    backlog: 1000"]
        )
        lines += ["    tls: true"] if scheme in ("mqtts", "wss") else []
    # A broker for chats lets a client have a thousand words.
    lines += ["modules:", "  mod_mqtt:", "    max_queue: infinity"]
    lines += [f"    {line}" for line in place.more_lines]
    config = _written(place, "ejabberd.yml", lines)
    environment = {
        "EJABBERD_CONFIG_PATH": config,
        "EJABBERD_LOG_PATH": str(place.directory / "ejabberd.log"),
        "ERL_LIBS": "/usr/lib/x86_64-linux-gnu",
        "HOME": str(place.directory),
    }
    mnesia = ("-mnesia", "dir", f'"{place.directory}/mnesia"')
    return Start((program, "+P", "250000", "-noinput", *mnesia, "-s", "ejabberd"), environment)


def _activemq(program: str, place: Place) -> Start:
    keys = place.directory / "keys.p12"
    host = f"[{place.host}]" if ":" in place.host else place.host
    _pkcs12(place.files, keys)
    xml = f"""<beans xmlns="http://www.springframework.org/schema/beans"
  xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
    http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
    http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" useJmx="false" persistent="false"
      brokerName="localhost" dataDirectory="{place.directory}/data" useShutdownHook="false">
    <sslContext><sslContext keyStore="file:{keys}" keyStoreType="PKCS12"
      keyStorePassword="{_PASSWORD}"/></sslContext>
    <transportConnectors>
      <transportConnector name="m" uri="mqtt+nio://{host}:{place.ports["mqtt"]}"/>
      <transportConnector name="s" uri="mqtt+ssl://{host}:{place.ports["mqtts"]}"/>
    </transportConnectors>
  </broker>
</beans>
"""
    config = _written(place, "activemq.xml", [xml])
    layout = "log4j.appender.A.layout=org.apache.log4j.SimpleLayout"
    console = "log4j.appender.A=org.apache.log4j.ConsoleAppender"
    log = _written(place, "log4j.properties", ["log4j.rootLogger=WARN, A", console, layout])
    folder = Path("/usr/share/activemq/lib")
    jars = os.pathsep.join(
        (f"{folder}/*", f"{folder}/optional/*", "/usr/share/java/mqtt-client.jar")
    )
    return Start(
        (
            program,
            f"-Dactivemq.home={place.directory}",
            f"-Dactivemq.base={place.directory}",
            f"-Dlog4j.configuration=file:{log}",
            "-cp",
            jars,
            "org.apache.activemq.console.Main",
            "start",
            f"xbean:file:{config}",
        )
    )


def _aedes(program: str, place: Place) -> Start:
    code = f"""
const fs = require('fs'), module_ = require('aedes');
const {{ createServer }} = require('aedes-server-factory');
const keys = {{ key: fs.readFileSync('{place.files.key}'),
  cert: fs.readFileSync('{place.files.certificate}') }};
(async () => {{
  const aedes = await module_.Aedes.createBroker();
  const listen = (port, options) => createServer(aedes, options).listen(port, '{place.host}');
  {"".join(f"listen({port}, {_aedes_options(scheme)});" for scheme, port in place.ports.items())}
}})();
"""
    script = _written(place, "aedes.js", [code])
    return Start((program, script), {"NODE_PATH": str(_aedes_folder() / "node_modules")})


def _aedes_options(scheme: str) -> str:
    web, encrypted = scheme.startswith("ws"), scheme in ("mqtts", "wss")
    secured = f"{'https' if web else 'tls'}: keys" if encrypted else ""
    return "{" + ", ".join(filter(None, ("ws: true" if web else "", secured))) + "}"


def _aedes_folder() -> Path:
    return Path(os.environ.get("AEDES", Path(__file__).parent.parent)).resolve()


def _find_aedes() -> str | None:
    there = (_aedes_folder() / "node_modules" / "aedes").is_dir()
    return shutil.which("node") if there else None


def _program(name: str, *needed: str) -> Callable[[], str | None]:
    # Debian's /usr/sbin/rabbitmq-server becomes another user, who may not look into our folder.
    path = os.pathsep.join(("/usr/lib/rabbitmq/bin", *os.get_exec_path(), "/usr/sbin"))
    return lambda: shutil.which(name, path=path) if all(map(os.path.exists, needed)) else None


MAKES: Final[Mapping[str, Make]] = {
    "mosquitto": Make(lambda: str(find_mosquitto() or "") or None, _mosquitto),
    "nats": Make(lambda: str(find_nats() or "") or None, _nats, ("mqtt", "ws")),
    "nats-tls": Make(lambda: str(find_nats() or "") or None, _nats, ("mqtts", "wss")),
    "aedes": Make(_find_aedes, _aedes),
    "rabbitmq": Make(_program("rabbitmq-server"), _rabbitmq, path="/ws"),
    "ejabberd": Make(
        _program("erl", "/usr/sbin/ejabberdctl"), _ejabberd, login=("tester@localhost", "secret")
    ),
    "activemq": Make(
        _program("java", "/usr/share/activemq/lib/activemq-mqtt.jar"), _activemq, ("mqtt", "mqtts")
    ),
}
"""The brokers of other makers, by name."""

_PASSWORD: Final = "changeit"


class Foreign(BrokerProcess):
    """A running broker of another maker; made by `run_foreign`."""

    def __init__(self, name: str, make: Make, program: str, place: Place) -> None:
        super().__init__(name, "unknown")
        self._make, self._program, self._place = make, program, place
        self._afterwards: Sequence[str] = ()

    @property
    def authority(self) -> Path:
        """The file of the authority that signed its certificate."""
        return self._place.files.authority

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        user, password = self._make.login or (None, None)
        return tuple(
            Endpoint(
                scheme,
                self._place.host,
                port,
                user,
                password,
                self._make.path if scheme.startswith("ws") else "",
            )
            for scheme, port in self._place.ports.items()
        )

    @property
    def log(self) -> str:
        """The last of what it printed."""
        path = self._place.directory / "output"
        return path.read_text("utf-8", "replace").strip()[-_LAST_WORDS:]

    async def start(self) -> None:
        start = self._make.start(self._program, self._place)
        self._afterwards = start.afterwards
        with (self._place.directory / "output").open("ab") as output:
            self._process = spawn(
                start.arguments,
                output=output,
                directory=self._place.directory,
                environment={**os.environ, **start.environment},
            )
        try:
            async with asyncio.timeout(_READY_S):
                for endpoint in self.endpoints:
                    await self._listening(endpoint)
        except TimeoutError:
            raise CannotRunError(f"{self.name} did not listen: {self.log}") from None
        first = self.endpoints[0]
        trusted = ssl.create_default_context(cafile=self.authority) if first.tls else None
        await greet(first, tls_context=trusted, timeout_s=_ANSWER_S)

    async def stop(self) -> None:
        await super().stop()
        if self._afterwards:
            await asyncio.to_thread(subprocess.run, self._afterwards, capture_output=True)

    async def _listening(self, endpoint: Endpoint) -> None:
        while self.process.poll() is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
                writer.close()
                await writer.wait_closed()
                return
            await asyncio.sleep(_POLL_S)
        raise CannotRunError(f"{self.name} ended at its start: {self.log}")


@contextlib.asynccontextmanager
async def run_foreign(
    name: str, host: str = "127.0.0.1", more_lines: Sequence[str] = ()
) -> AsyncIterator[Foreign]:
    """A broker of `MAKES` for the length of the block.

    Raises MissingProgramError where it is not installed, CannotRunError where it does not start or
    does not answer a CONNECT.
    """
    make = MAKES[name]
    program = make.find()
    if program is None:
        raise MissingProgramError(f"{name} is not installed")
    with tempfile.TemporaryDirectory(prefix=f"loadgen-{name}-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        files = await asyncio.to_thread(make_certificates, directory / "tls", [host, "localhost"])
        ports = {scheme: free_port(host) for scheme in make.schemes}
        async with running(
            Foreign(name, make, program, Place(directory, host, ports, files, more_lines))
        ) as up:
            yield up


def _written(place: Place, name: str, lines: Sequence[str]) -> str:
    path = place.directory / name
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def _joined(place: Place) -> str:
    """Key and certificate in one file, as ejabberd wants them."""
    texts = [path.read_text() for path in (place.files.certificate, place.files.key)]
    return _written(place, "server.pem", texts)


def _pkcs12(files: CertificateFiles, path: Path) -> None:
    """Key and certificate as Java wants them."""
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    assert isinstance(key, rsa.RSAPrivateKey)
    sealed = serialization.BestAvailableEncryption(_PASSWORD.encode())
    path.write_bytes(serialize_key_and_certificates(b"server", key, certificate, None, sealed))
