"""Clients of somebody else, to see that brokers and relays of ours are what they say."""

import ssl

import aiomqtt

from loadgen.brokers.client import client_identifier, tls_context_of
from loadgen.brokers.endpoints import Endpoint


def mqtt_client(
    endpoint: Endpoint,
    role: str,
    *,
    version: int = 4,
    tls_context: ssl.SSLContext | None = None,
    timeout_s: float = 10.0,
) -> aiomqtt.Client:
    """A client of this broker, not yet connected; `role` is part of its Client Identifier.

    `tls_context` is used for mqtts and wss (the system's trust when None).
    """
    return aiomqtt.Client(
        endpoint.host,
        endpoint.port,
        username=endpoint.username,
        password=endpoint.password,
        identifier=client_identifier(role),
        protocol=aiomqtt.ProtocolVersion(version),
        transport="websockets" if endpoint.websocket else "tcp",
        websocket_path=endpoint.path if endpoint.websocket else None,
        tls_context=tls_context_of(endpoint, tls_context),
        timeout=timeout_s,
    )
