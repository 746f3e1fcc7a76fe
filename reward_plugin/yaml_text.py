"""YAML as people write rubrics and configs: dates are text, and a key that stands twice is an error."""

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        doubled = sorted({name for name in names if names.count(name) > 1 and name != "<<"})
        if doubled:
            raise yaml.YAMLError(f"a key stands twice in one mapping: {', '.join(doubled)}")
        return super().construct_mapping(node, deep)


# Its own table: other packages change the shared one when they are imported
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str) -> Any:
    """Return the value of a YAML text. Raises `ValueError` with one line that says what is wrong.

    >>> load("{date: 2026-01-02, met: true}")
    {'date': '2026-01-02', 'met': True}
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error
