"""Canonical JSON and content digests: the same bytes in every process, on every machine, for every dict order."""

import hashlib
import json


def canonical_json(value: object) -> str:
    """Return `value` as JSON with sorted keys, no spaces, and floats that are whole numbers written as integers.

    Lone surrogates are escaped, so any Python string has a canonical form. Raises `ValueError` for NaN and infinities.

    >>> canonical_json({"b": 1.0, "a": [True, "é"]})
    '{"a":[true,"\\\\u00e9"],"b":1}'
    """
    return json.dumps(_whole(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: object) -> str:
    """Return the sha256 of the canonical JSON of `value`, as 64 hexadecimal digits.

    >>> digest({"a": 1}) == digest({"a": 1.0})
    True
    """
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {str(key): _whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    return value
