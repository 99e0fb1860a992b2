"""A schema is followed exactly or refused: instances that violate it are never spelt."""

import json

import pytest

from interlock.core.testing.tiny import write_byte_tokenizer
from interlock.plugins.models.hugging_face import HuggingFaceDirectory
from interlock.plugins.models.text import load_codec
from interlock.plugins.structured import XGrammarConfig
from interlock.plugins.structured.xgrammar_masks import XGrammar

INT, STR, NUM = {"type": "integer"}, {"type": "string"}, {"type": "number"}
LIST = {"type": "array", "items": INT}
PAIR = {"type": "object", "properties": {"a": INT, "b": INT}}

VIOLATED = [
    (INT | {"multipleOf": 3}, 4), (INT | {"minimum": 3}, 2), (INT | {"maximum": 3}, 4),
    (INT | {"exclusiveMinimum": 3}, 3), (NUM | {"minimum": 3}, 2.5),
    (NUM | {"multipleOf": 0.5}, 0.3), (NUM | {"exclusiveMaximum": 3}, 3.0),
    (INT | {"minimum": 4, "multipleOf": 3}, 7), (NUM | {"maximum": 5}, 1000.0),
    (STR | {"minLength": 3}, "ab"), (STR | {"maxLength": 3}, "abcd"),
    (STR | {"pattern": "^a+$"}, "b"), (STR | {"pattern": "^a+$", "minLength": 3}, "aa"),
    (STR | {"format": "date", "minLength": 20}, "2020-01-01"),
    (STR | {"format": "date", "pattern": "^2"}, "1999-01-01"),
    (LIST | {"minItems": 2}, [1]), (LIST | {"maxItems": 1}, [1, 2]),
    (LIST | {"uniqueItems": True}, [1, 1]), (LIST | {"contains": {"const": 3}}, [1]),
    ({"type": "array", "prefixItems": [STR]}, [1]), ({"type": "array", "items": False}, [1]),
    ({"type": "array", "prefixItems": [STR], "items": INT}, ["a", "b"]),
    (PAIR | {"required": ["a"]}, {}), (PAIR | {"additionalProperties": False}, {"c": 1}),
    (PAIR | {"additionalProperties": INT}, {"c": "s"}), (PAIR | {"required": ["z"]}, {"a": 1}),
    (PAIR | {"minProperties": 2}, {"a": 1}), (PAIR | {"maxProperties": 1}, {"a": 1, "b": 1}),
    (PAIR | {"minProperties": 2, "required": ["a"]}, {"a": 1}),
    (PAIR | {"propertyNames": {"pattern": "^a$"}}, {"b": 1}),
    (PAIR | {"dependentRequired": {"a": ["b"]}}, {"a": 1}),
    (PAIR | {"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}),
    ({"type": "object", "patternProperties": {"^x": INT}}, {"x": "s"}),
    ({"type": "object", "patternProperties": {"^x": INT}, "additionalProperties": STR}, {"x": "s"}),
    ({"type": "object", "propertyNames": {"pattern": "^x$"}}, {"y": 1}),
    ({"not": INT}, 1), (INT | {"not": {"const": 3}}, 3), ({"oneOf": [INT, NUM]}, 1),
    ({"oneOf": [INT | {"minimum": 1}, INT | {"maximum": 5}]}, 3), ({"oneOf": [INT, STR]}, 1.5),
    ({"anyOf": [INT, STR]}, True), ({"anyOf": [INT, STR], "minimum": 5}, 3),
    ({"allOf": [INT | {"minimum": 3}, INT | {"maximum": 5}]}, 9),
    ({"const": 3}, 4), ({"enum": [1, 2]}, 3), (STR | {"enum": ["a", 1]}, 1),
    (INT | {"const": "a"}, "a"), ({"type": ["integer", "null"]}, "x"),
    ({"type": ["integer", "null"], "minimum": 3}, 2), ({"minimum": 3}, 2),
    ({"required": ["a"]}, {}), ({"pattern": "^a$"}, "b"), ({"items": INT}, ["s"]),
    ({"properties": {"a": INT}}, {"a": "s"}),
    ({"$defs": {"p": INT}, "$ref": "#/$defs/p", "minimum": 4}, 3),
    (PAIR | {"properties": {"a": LIST | {"uniqueItems": True}}}, {"a": [2, 2]}),
    ({"anyOf": [STR, {"not": INT}]}, 1),
]  # fmt: skip
FOLLOWED = [
    (INT, -40), (STR | {"title": "a name", "default": "x"}, 'a"b\u00e9'), (LIST, [1, 2, 3]),
    (PAIR | {"required": ["a"]}, {"a": 1}), (STR | {"enum": ["a", "b"]}, "b"),
    ({"anyOf": [INT, {"type": "null"}]}, None), ({"oneOf": [INT, STR]}, "x"),
    ({"$defs": {"p": PAIR}, "type": "array", "items": {"$ref": "#/$defs/p"}}, [{"a": 1, "b": 2}]),
    (LIST | {"uniqueItems": False, "maxItems": 2}, [1, 1]), (NUM, 2.5), ({}, {"any": ["thing"]}),
]  # fmt: skip


@pytest.fixture(scope="module")
def spells(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    write_byte_tokenizer(folder)
    codec = load_codec(HuggingFaceDirectory(folder))
    made = XGrammar(XGrammarConfig(), codec, 257)

    def spells(schema, instance):
        matcher = made.matcher("json_schema", json.dumps(schema), [256])
        text = json.dumps(instance, ensure_ascii=False)
        return all(matcher.accept(token) for token in [*codec.encode(text), 256])

    return spells


@pytest.mark.parametrize(("schema", "instance"), VIOLATED)
def test_what_violates_a_schema_is_not_spelt_or_the_schema_is_refused(spells, schema, instance):
    try:
        spelt = spells(schema, instance)
    except ValueError as error:
        spelt, place = False, str(error)
        if not place.startswith("#"):  # refused by name and place
            raise
    assert not spelt


@pytest.mark.parametrize(("schema", "instance"), FOLLOWED)
def test_ordinary_schemas_are_followed(spells, schema, instance):
    assert spells(schema, instance)
