"""Sizes of messages: size in KB = m · x + b (thesis of K. Sachs, page 87), in three classes.

x is a quantity such as the lines of an order. Its values are not published: the defaults give the
published mean of about 2 KB per message sent, and a freeform scenario may set others. A KB is 1024
bytes. The class is drawn once, when an interaction begins: 95 % small, 4 % medium, 1 % large.
"""

from collections.abc import Mapping
from typing import Final

from loadgen.specjms.messages import TYPES

CLASS_PERCENT: Final = (95, 4, 1)

Quantities = Mapping[str, tuple[float, float, float]]
"""Values of each x: small, medium, large."""

DEFAULT_QUANTITIES: Final[Quantities] = {
    "order_lines": (10, 50, 200),
    "purchase_order_lines": (10, 50, 200),
    "registered_items": (10, 50, 200),
    "cash_desks": (5, 5, 5),
    "sales_lines": (2, 2, 2),
    "new_products": (10, 50, 200),
    "hot_cards": (20, 100, 400),
}
QUANTITIES: Final = tuple(DEFAULT_QUANTITIES)

_ORDER, _PURCHASE = "order_lines", "purchase_order_lines"
_FORMULAS: Final[Mapping[str, tuple[float, tuple[tuple[float, str], ...]]]] = {
    "order": (1.4534, ((0.0565, _ORDER),)),
    "orderConf": (1.7374, ((0.0565, _ORDER),)),
    "shipDep": (0.7222, ((0.0787, _ORDER),)),
    "statInfoOrderDC": (0.1463, ((0.0153, _ORDER),)),
    "shipInfo": (0.8912, ((0.0787, _ORDER),)),
    "shipConf": (0.7140, ((0.0202, _ORDER),)),
    "callForOffers": (0.8094, ((0.1785, _PURCHASE),)),
    "offer": (0.9414, ((0.2489, _PURCHASE),)),
    "pOrder": (1.1076, ((0.2498, _PURCHASE),)),
    "pOrderConf": (1.3494, ((0.2410, _PURCHASE),)),
    "invoice": (1.1211, ((0.1942, _PURCHASE),)),
    "pShipInfo": (0.7279, ((0.0827, _PURCHASE),)),
    "pShipConf": (0.7612, ((0.0827, _PURCHASE),)),
    "statInfoShipDC": (0.7681, ((0.0831, _PURCHASE),)),
    "priceUpdate": (0.2310, ()),
    "inventoryInfo": (0.5137, ((0.0970, "registered_items"),)),
    "statInfoSM": (0.9813, ((0.0139, "cash_desks"), (0.3650, "sales_lines"))),
    "productAnnouncement": (0.1754, ((0.0103, "new_products"),)),
    "creditCardHL": (0.1846, ((0.0166, "hot_cards"),)),
}
"""b and the terms m · x, in KB."""


def message_sizes(quantities: Quantities = DEFAULT_QUANTITIES) -> tuple[tuple[int, int, int], ...]:
    """Return the payload bytes of each message type in each class, shape (types, 3)."""
    return tuple(
        (_bytes(name, quantities, 0), _bytes(name, quantities, 1), _bytes(name, quantities, 2))
        for name in TYPES
    )


def _bytes(name: str, quantities: Quantities, size_class: int) -> int:
    base, terms = _FORMULAS[name]
    return round(1024 * (base + sum(m * quantities[x][size_class] for m, x in terms)))
