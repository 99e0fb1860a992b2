"""What of a JSON Schema xgrammar would follow only in part, so that nothing is ignored silently.

Found by giving xgrammar 0.2 schemas and instances that violate them; tests repeat it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

NEVER = (
    "uniqueItems", "contains", "minContains", "maxContains", "dependentRequired",
    "dependentSchemas", "dependencies", "if", "then", "else", "not", "$dynamicRef",
    "$recursiveRef",
)  # fmt: skip
OF_TYPE = {
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "string": {"minLength", "maxLength", "pattern"},
    "array": {"minItems", "maxItems", "prefixItems", "items"},
    "object": {
        "properties", "required", "minProperties", "maxProperties", "propertyNames",
        "patternProperties", "additionalProperties",
    },
}  # fmt: skip
"""The constraints that are followed where the type is stated, each with its type."""
WHOLE = ("$ref", "anyOf", "oneOf", "allOf", "const", "enum")
"""Where one of these is, nothing beside it is followed."""
APART = (
    ("pattern", ("format", "minLength", "maxLength")),
    ("format", ("minLength", "maxLength")),
    ("multipleOf", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    ("propertyNames", ("properties",)),
    ("patternProperties", ("additionalProperties",)),
)
"""Constraints of which one is dropped beside another."""
SCHEMAS = ("items", "additionalProperties", "propertyNames")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
TYPES = {
    "null": (type(None),), "boolean": (bool,), "integer": (int,), "number": (int, float),
    "string": (str,), "array": (list,), "object": (dict,),
}  # fmt: skip


def unenforced(schema: Any, where: str = "#") -> Iterator[str]:
    """What would not be followed exactly, each with its place in the schema."""
    if not isinstance(schema, Mapping):
        return
    problems = (*_never(schema), *_untyped(schema), *_beside(schema), *_values(schema))
    yield from (f"{where}: {problem}" for problem in problems)
    for key in SCHEMAS:
        yield from unenforced(schema.get(key), f"{where}/{key}")
    for key in NAMED:
        named = schema.get(key)
        for name, child in named.items() if isinstance(named, Mapping) else ():
            yield from unenforced(child, f"{where}/{key}/{name}")
    for key in LISTED:
        listed = schema.get(key)
        for number, child in enumerate(listed if isinstance(listed, list) else ()):
            yield from unenforced(child, f"{where}/{key}/{number}")


def _never(schema: Mapping[str, Any]) -> Iterator[str]:
    for key in NEVER:
        if schema.get(key, False) is not False:
            yield f"{key} is not followed; leave it out"
    if len(schema.get("allOf") or ()) > 1:
        yield "allOf of several schemas is not followed; merge them into one"
    branches = schema.get("oneOf") or ()
    kinds = [branch.get("type") for branch in branches if isinstance(branch, Mapping)]
    apart = all(isinstance(kind, str) for kind in kinds) and not {"integer", "number"} <= {*kinds}
    if len(branches) > 1 and not (apart and len({*kinds}) == len(branches)):
        yield "oneOf is followed only between different types; write anyOf"


def _untyped(schema: Mapping[str, Any]) -> Iterator[str]:
    stated = schema.get("type")
    types = stated if isinstance(stated, list) else [stated]
    followed = {key for kind in types for key in OF_TYPE.get(str(kind), ())}
    if schema.get("properties"):
        followed |= OF_TYPE["object"]
    known = {key: kind for kind, keys in OF_TYPE.items() for key in keys}
    for key in known.keys() & schema.keys() - followed:
        yield f"{key} is followed only with type {known[key]}"
    unnamed = {*schema.get("required", ())} - {*schema.get("properties", ())}
    if unnamed:
        yield f"required names {', '.join(sorted(unnamed))}, which properties does not"


def _beside(schema: Mapping[str, Any]) -> Iterator[str]:
    constraints = {key for keys in OF_TYPE.values() for key in keys} | {"type", *WHOLE}
    for key in WHOLE:
        beside = (constraints & schema.keys()) - {key}
        if key in schema and beside - ({"type"} if key in ("const", "enum") else set()):
            yield f"{key} is followed alone, without {', '.join(sorted(beside))}"
    for key, others in APART:
        for other in others:
            if key in schema and other in schema and schema[other] is not False:
                yield f"{key} and {other} are not followed together"


def _values(schema: Mapping[str, Any]) -> Iterator[str]:
    """const and enum beside a type: xgrammar goes by the values alone."""
    stated = schema.get("type")
    if stated is None or not ("const" in schema or "enum" in schema):
        return
    types = stated if isinstance(stated, list) else [stated]
    kinds = [kind for name in types for kind in TYPES.get(str(name), ())]
    for value in [schema["const"]] if "const" in schema else schema["enum"]:
        if type(value) not in kinds:
            yield f"the value {value!r:.40} is not of type {stated}"
