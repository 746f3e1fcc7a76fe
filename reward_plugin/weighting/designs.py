"""Designs: which pairs of K siblings are asked, and in which display orders."""

import math
import random
from collections.abc import Sequence
from itertools import permutations
from typing import Literal

from reward_plugin.weighting.judgments import Pair

PairsMode = Literal["all", "sparse"]

_SMALLEST = 6  # under six criteria a sparse design would be a mere ring
_SHARE = 0.4  # most of the K(K-1) queries that a sparse design takes
_PER_CRITERION = 1.2  # and most queries in units of K log2 K


def design(ids: Sequence[str], given: Sequence[Pair], mode: PairsMode, seed: str) -> list[tuple[str, str]]:
    """Return the (first, second) to ask for `ids`, leaving out the pairs that are given.

    "all" asks every pair in both orders. "sparse" asks some pairs, once each: a circulant graph over a random order of
    the criteria, drawn by `seed`. Every criterion is shown first as often as second, so that a liking for one position
    cancels in the weights; neighbours in the order are always asked, so that all criteria are connected.

    >>> len(design("abcdefghijkl", [], "all", "")), len(design("abcdefghijkl", [], "sparse", ""))
    (132, 48)
    """
    if mode == "all" or len(ids) < _SMALLEST:
        asked = list(permutations(ids, 2))
    else:
        count = len(ids)
        order = sorted(ids)
        chance = random.Random(seed)
        chance.shuffle(order)
        queries = min(_SHARE * count * (count - 1), _PER_CRITERION * count * math.log2(count))
        further = range(2, (count + 1) // 2)  # a step of half the circle would show half of the criteria first only
        steps = [1, *chance.sample(further, min(len(further), max(1, int(queries / count)) - 1))]
        asked = [(order[place], order[(place + step) % count]) for step in steps for place in range(count)]
    left_out = set(given)
    return [(first, second) for first, second in asked if (min(first, second), max(first, second)) not in left_out]
