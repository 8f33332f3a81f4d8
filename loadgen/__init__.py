"""An MQTT load generator and broker benchmark that judges its own result."""

__version__ = "0.1.0"
