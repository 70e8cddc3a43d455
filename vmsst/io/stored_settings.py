"""Settings that stored results record, so that work on them resumes only with the same inputs.

Settings are JSON values. An input such as an encoder or a text is an object with a `digest` of its
content and a `name` for people: it stays the same when it is moved, and differs when its content
does. Without a digest, the name identifies it.
"""

import json
from collections.abc import Mapping
from typing import Any

_ABSENT = object()
_FOR_PEOPLE = "name"


def differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> str:
  """Returns what differs between two settings, for people; "" if nothing does."""
  return "; ".join(
    f"{key} is {_shown(stored.get(key, _ABSENT))}, not {_shown(given.get(key, _ABSENT))}"
    for key in dict.fromkeys((*stored, *given))
    if not _same(stored.get(key, _ABSENT), given.get(key, _ABSENT))
  )


def _same(x: Any, y: Any) -> bool:
  if isinstance(x, Mapping) and isinstance(y, Mapping):
    known = {"digest"} <= {name for name in x if x[name]} & {name for name in y if y[name]}
    ignored = {_FOR_PEOPLE} if known else set()
    names = {*x, *y} - ignored
    return all(_same(x.get(name, _ABSENT), y.get(name, _ABSENT)) for name in names)
  if isinstance(x, list) and isinstance(y, list):
    return len(x) == len(y) and all(map(_same, x, y))
  return x == y


def _shown(value: Any) -> str:
  if value is _ABSENT or value is None:
    return "unset"
  if isinstance(value, Mapping) and isinstance(value.get(_FOR_PEOPLE), str):
    digest = value.get("digest")
    others = {key: x for key, x in value.items() if key not in (_FOR_PEOPLE, "digest")}
    shown = json.dumps(others, ensure_ascii=False) if others else ""
    return value[_FOR_PEOPLE] + (f" ({str(digest)[:12]})" if digest else "") + shown
  return json.dumps(value, ensure_ascii=False)
