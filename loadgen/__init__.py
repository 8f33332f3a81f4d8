"""An MQTT load generator and broker benchmark that judges its own result."""

__version__ = "0.1.0"

PROGRAM = f"loadgen {__version__}"
"""Name and version, as files and peers are told them."""
