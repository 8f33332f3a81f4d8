"""Users with separate passwords and topic rights, for a broker with an account for each device.

They are derived from the number of the device and one key of the run, so they need no file.
"""

import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from loadgen.mqtt.topics import split_shared
from loadgen.plan.addressing import filters_of, matches_to
from loadgen.plan.groups import DeviceGroup
from loadgen.plan.plan import Plan, rooted

OPERATOR = "loadgen"  # the user that administers the broker; it has all rights

ANY_ROOT = "+"
"""Wildcard for the first level of the run's topics, which is not fixed until the broker runs."""

Login = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Account:
    user_name: str
    password: str
    publishes: tuple[str, ...] = ()
    receives: tuple[str, ...] = ()


def login_of(key: str, group: DeviceGroup, device: int) -> Login:
    user = f"{group.name}-{device}"
    return user, hmac.new(key.encode(), user.encode(), hashlib.sha256).hexdigest()[:32]


def accounts(plan: Plan, key: str, listed: Mapping[str, Sequence[Login]]) -> Iterator[Account]:
    """Yield the account of the operator, whose password is the key, and one for each device.

    `listed` are the logins of groups, by name, that are not to be derived.
    """
    yield Account(OPERATOR, key, ("#",), ("#", "$SYS/#"))
    plan = replace(plan, groups=rooted(plan.groups, ANY_ROOT))
    for group in plan.groups:
        chosen = listed.get(group.name)
        for device in range(group.count):
            user, password = login_of(key, group, device) if chosen is None else chosen[device]
            # Rights are for topics, so a shared subscription needs those of its filter alone.
            receives = tuple(split_shared(one)[1] for one in filters_of(group, device))
            yield Account(user, password, _publishes(plan, group, device), receives)


def _publishes(plan: Plan, group: DeviceGroup, device: int) -> tuple[str, ...]:
    topics: list[str] = []
    if group.publishes is not None:
        topics.append(group.expand(group.publishes.topic, device))
    if group.responds is not None:
        for match in matches_to(plan, group):
            senders = match.source.senders
            topics += (
                senders.expand(group.responds.topic, sender) for sender in match.senders_to(device)
            )
    if group.will is not None:
        topics.append(group.will.replace("{device}", str(device)))
    return tuple(topics)
