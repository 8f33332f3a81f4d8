"""The parent's handle on a reflector: start it, change its faults, read its counts."""

from contextlib import AbstractAsyncContextManager

from loadgen.brokers.child import ChildBroker
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.faults import Counts, parse_faults
from loadgen.brokers.process import running


class ErringBroker(ChildBroker):
    """A running reflector or relay. What it did is `counts`."""

    async def set_faults(self, faults: str) -> Counts:
        """Err like this from now on, and what was counted up to now.

        Held back messages are let go first; a restart keeps the faults. Raises UsageError when the
        text is not a list of faults.
        """
        parse_faults(faults)
        answer = await self.ask(faults=faults)
        self._config["faults"] = faults
        return Counts(**answer["counts"])

    async def counts(self) -> Counts:
        """What it has done since it started."""
        return Counts(**(await self.ask())["counts"])

    async def drop_connections(self, number: int | None = None) -> int:
        """Cut `number` client connections, all if None, as a broken network would; how many."""
        dropped: int = (await self.ask(drop=number))["dropped"]
        return dropped


def run_reflector(
    faults: str = "none", *, host: str = "127.0.0.1", port: int = 0, record: str = ""
) -> AbstractAsyncContextManager[ErringBroker]:
    """A reflector for the length of the block; `port` 0 chooses one.

    `record` is the file to which it writes what was said (`transcript.py`), "" for none.
    Raises UsageError when `faults` cannot be read, CannotRunError when it does not start.
    """
    parse_faults(faults)
    module = "loadgen.brokers.reflector_server"
    endpoint = Endpoint("mqtt", host, port)
    return running(
        ErringBroker(
            "reflector", "loadgen reflector", module, endpoint, faults=faults, record=record
        )
    )
