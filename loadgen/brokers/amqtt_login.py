"""Who may connect to the embedded amqtt; loaded by amqtt by its dotted path.

amqtt's own plugins do not serve a benchmark: the anonymous one forgets the durable sessions of
anonymous clients within a second, and the password file wants Argon2, some 50 ms of processor time
a connect.
"""

import hmac
from dataclasses import dataclass, field
from typing import Any

from amqtt.plugins.base import BaseAuthPlugin


class OneLogin(BaseAuthPlugin):  # type: ignore[misc]
    """Lets in everybody, or those who bring the one user name and password."""

    @dataclass
    class Config:
        """No user name means everybody."""

        username: str | None = None
        password: str | None = field(default=None, repr=False)

    async def authenticate(self, *, session: Any) -> bool:
        """Whether the client of `session` may connect."""
        if self.config.username is None:
            return True
        wanted = f"{self.config.username}\0{self.config.password}".encode()
        given = f"{session.username or ''}\0{session.password or ''}".encode()
        return hmac.compare_digest(given, wanted)
