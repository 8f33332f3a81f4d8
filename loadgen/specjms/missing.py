"""Names what did not arrive: the holes in the accounts of a worker's consumers."""

import numpy as np
import numpy.typing as npt

from loadgen.specjms import kernels as k
from loadgen.specjms.destinations import location_name
from loadgen.specjms.layout import Chains, destination_of_stream
from loadgen.specjms.messages import MESSAGES
from loadgen.specjms.model import Model, enabled_types
from loadgen.workload.accounting import HOLE_FIRST, HOLE_LAST, HOLE_LINK, PAIR_HOLES

__all__ = ["NAMED_LIMIT", "missing_messages"]

Table = npt.NDArray[np.int64]

NAMED_LIMIT = 100


def missing_messages(model: Model, chains: Chains, holes: Table) -> list[list[object]]:
    """At most NAMED_LIMIT entries [destination number, "message 17 of SP4"], as JSON values.

    A message after which nothing came on its stream leaves no hole; those are only counted.
    """
    named: list[list[object]] = []
    done: set[int] = set()
    for row in range(len(chains.roles)):
        for number in enabled_types(model):
            base = int(chains.bases[row, number])
            if base < 0 or base in done:
                continue
            done.add(base)
            for pair in np.flatnonzero(
                chains.pairs[base : base + _span(chains, row, number), 1] >= 0
            ):
                _name(model, chains, holes, row, number, base, int(pair), named)
                if len(named) >= NAMED_LIMIT:
                    return named
    return named


def _span(chains: Chains, row: int, number: int) -> int:
    if MESSAGES[number].spread == "family":
        return int(chains.roles[row, k.R_FAMILIES] * chains.types[number, k.T_PRODUCERS])
    return int(chains.types[number, k.T_STREAMS])


def _name(
    model: Model,
    chains: Chains,
    holes: Table,
    row: int,
    number: int,
    base: int,
    pair: int,
    named: list[list[object]],
) -> None:
    producers = int(chains.types[number, k.T_PRODUCERS])
    producer = pair % producers
    if MESSAGES[number].spread == "family":
        first = int(chains.roles[row, k.R_FAMILY_FIRST])
        destination = int(chains.offered[first + pair // producers])
    else:
        destination = destination_of_stream(model, number, pair)
    message = MESSAGES[number]
    each = producers // model.count_of(message.sender)
    sender = location_name(message.sender, producer // each)
    receiver = location_name(message.consumer, int(chains.roles[row, k.R_PLACE]))
    to = f" at {receiver}" if message.spread != "one" else ""
    hole = int(chains.pairs[base + pair, PAIR_HOLES])
    while hole >= 0 and len(named) < NAMED_LIMIT:
        first_one, last_one = int(holes[hole, HOLE_FIRST]), int(holes[hole, HOLE_LAST])
        which = f"{first_one}" if first_one == last_one else f"{first_one} to {last_one}"
        place = int(chains.types[number, k.T_DESTINATION]) + destination
        named.append([place, f"message {which} from {sender}{to}"])
        hole = int(holes[hole, HOLE_LINK])
