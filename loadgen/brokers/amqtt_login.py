"""Who may connect to the embedded amqtt; loaded by amqtt by its dotted path.

amqtt's own anonymous login does not serve a benchmark: it forgets the durable sessions of
anonymous clients within a second.
"""

from typing import Any

from amqtt.plugins.base import BaseAuthPlugin


class Everybody(BaseAuthPlugin):  # type: ignore[misc]
    """Lets in everybody."""

    async def authenticate(self, *, session: Any) -> bool:
        """Whether the client of `session` may connect."""
        return True
