"""The cheapest servers for several classes of requests, as a mixed-integer linear programme (scipy, HiGHS).

::

    n[c, k]  servers of kind k that serve class c alone        whole
    u[k]     whether kind k is used at all                     0 or 1
    r[g]     units of GPU g that are rented                    whole

    minimise    sum_g price[g] r[g]
    with        sum_k capacity[c, k] n[c, k]  >=  load[c]                              every class is carried
                sum_c n[c, k]                 <=  most[k] u[k]
                sum_(k on g) gpus[k] (sum_c n[c, k] + spares u[k])  <=  unit[g] r[g]   spares of each kind, rented
                r[g], and the sum of one package  <=  stock[g]                         modes share their packages

A server serves one class, so its capacity is the one that was replayed, and nothing is assumed about mixtures. A
spare of a kind stands in for any server of that kind. Equal costs are broken towards fewer servers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np

TIME_LIMIT_S = 5.0
TIE = 1e-6  #: weight of one server against the price of the cheapest unit: breaks ties and buys nothing


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind of server: how many GPUs of which type, and what it carries of each class."""

    gpu: int  #: index of the type of GPU
    gpus: int
    capacity: tuple[float, ...]  #: requests per second of each class; 0 where it cannot serve it


@dataclass(frozen=True, slots=True)
class Rent:
    """One type of GPU, in units that can be rented: a GPU, a package of partitions, a node."""

    price: float  #: of one unit; in USD, watts or units, as is minimised
    gpus: int = 1  #: of one unit
    stock: float = inf  #: units that there are
    package: str = ""  #: that all modes of which share the stock


@dataclass(frozen=True, slots=True)
class Mix:
    """Servers of each kind for each class, the spares, and what is rented."""

    servers: tuple[tuple[int, ...], ...]  #: [class][kind]
    spares: tuple[int, ...]  #: [kind]
    units: tuple[int, ...]  #: [GPU]
    price: float
    proven: bool = True  #: False: time ran out before it was certain that nothing is cheaper


def cheapest_mix(loads: Sequence[float], offers: Sequence[Offer], rents: Sequence[Rent], spares: int = 0) -> Mix | None:
    """The cheapest mix that carries every load (requests per second); None where there is none."""
    from scipy.linalg import block_diag
    from scipy.optimize import Bounds, LinearConstraint, milp

    classes, kinds, types = len(loads), len(offers), len(rents)
    if not kinds:
        return None
    most = [[ceil(load / o.capacity[c]) if o.capacity[c] > 0 else 0 for o in offers] for c, load in enumerate(loads)]
    used, rented = classes * kinds, classes * kinds + kinds  # where u and r begin
    size = rented + types
    sizes = np.array([[offer.gpus * (offer.gpu == g) for offer in offers] for g in range(types)])
    packages = list(dict.fromkeys(rent.package for rent in rents if rent.package))
    stocks = [min(rent.stock for rent in rents if rent.package == package) for package in packages]
    carried = block_diag(*([offer.capacity[c] / load for offer in offers] for c, load in enumerate(loads)))
    shared = np.array([[rent.package == package for rent in rents] for package in packages]).reshape(-1, types)
    rows = [
        [carried, np.zeros((classes, kinds + types))],
        [np.tile(np.eye(kinds), classes), -np.diag(np.sum(most, axis=0)), np.zeros((kinds, types))],
        [np.tile(sizes, classes), sizes * spares, -np.diag([rent.gpus for rent in rents])],
        [np.zeros((len(packages), rented)), shared],
    ]
    least = [*[1.0] * classes, *[-inf] * (kinds + types + len(packages))]
    limit = [*[inf] * classes, *[0.0] * (kinds + types), *stocks]
    price = np.zeros(size)
    price[rented:] = [rent.price for rent in rents]
    price[:used] = TIE * (min((rent.price for rent in rents if rent.price > 0), default=1.0))
    upper = [*(value for row in most for value in row), *[1] * kinds, *(rent.stock for rent in rents)]
    found = milp(
        price,
        integrality=np.ones(size),
        bounds=Bounds(np.zeros(size), np.array(upper, dtype=float)),
        constraints=LinearConstraint(np.block(rows), least, limit),
        options={"time_limit": TIME_LIMIT_S, "mip_rel_gap": 0.0},  # Ctrl-C waits for it
    )
    if found.x is None:
        return None
    whole = [round(value) for value in found.x]
    servers = tuple(tuple(whole[c * kinds : (c + 1) * kinds]) for c in range(classes))
    counts = [sum(row[k] for row in servers) for k in range(kinds)]
    spared = tuple(spares if count else 0 for count in counts)
    gpus = [offer.gpus * (count + more) for offer, count, more in zip(offers, counts, spared, strict=True)]
    of_type = [sum(n for n, offer in zip(gpus, offers, strict=True) if offer.gpu == g) for g in range(types)]
    units = tuple(ceil(total / rent.gpus) for total, rent in zip(of_type, rents, strict=True))
    total = sum(count * rent.price for count, rent in zip(units, rents, strict=True))
    return Mix(servers, spared, units, total, found.status == 0)
