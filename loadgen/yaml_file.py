"""YAML or JSON, as files of configurations, costs and runs to start hold it. It knows no keys."""

from __future__ import annotations

from typing import Any

import orjson
import yaml

from loadgen.errors import ConfigError


class _UniqueKeys(yaml.SafeLoader):
    """YAML's own loader takes the last of two equal keys; here they are an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key} stands twice", problem_mark=node.start_mark
                )
        return super().construct_mapping(node, deep)


def parse(data: bytes, place: str) -> Any:
    """What `data` says; raises ConfigError, which begins with `place`. JSON is YAML."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return yaml.load(data, Loader=_UniqueKeys)
    except (yaml.YAMLError, UnicodeError, RecursionError, ValueError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        problem = getattr(error, "problem", None) or type(error).__name__
        raise ConfigError(f"{place}{line}: neither YAML nor JSON: {problem}") from None
