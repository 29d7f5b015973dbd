"""The OpenAPI 3.1 document of the REST interface, made from the register.

Arguments are JSON Schema in the register, each with where it comes from. What is answered is
written there as shapes (``api_shapes()`` says how); here they become JSON Schema. The document says
nothing that a test does not compare with a running server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchboard import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from switchboard.operations import Operation

MOST = 999_999_999  # what an integer among the arguments may be
SCALARS: Mapping[str, Mapping[str, Any]] = {
    "text": {"type": "string"},
    "uuid": {"type": "string", "format": "uuid"},
    "time": {"type": "string", "format": "date-time"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "object": {"type": "object"},
    "any": {},
}
ABOUT = (
    "What a human does with a Switchboard: todos, endpoints, receivers, deliveries, hooks and "
    "budgets. Whatever is not yours is as unknown as what never was. Lists that grow have at most "
    "`limit` rows and go on from `next_cursor`. Errors are `{error, code, …}`: branch on `code`; "
    "an argument that is wrong is named in `field`. Expect that fields are added to answers."
)
TOKEN = "an operator token, sbo_…, from `switchboard human token create` or POST /api/v1/tokens"  # noqa: S105
COOKIE = (
    "the session of the board; what changes something needs the header X-CSRF-Token with the token "
    "of one of its pages, and comes from this origin"
)


def openapi(
    operations: Iterable[Operation],
    shapes: Iterable[tuple[str, str, Mapping[str, Any]]],
    codes: Iterable[str],
    public_url: str,
    cookie: str,
) -> dict[str, Any]:
    """The document.

    Args:
        operations: the register.
        shapes: name, description and fields of what answers are made of.
        codes: of errors.
        public_url: of this server.
        cookie: the name of the board's cookie.
    """
    named = {name: (text, fields) for name, text, fields in shapes}
    fields = {name: fields for name, (_, fields) in named.items()}
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _described(one, fields)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Switchboard", "version": __version__, "description": ABOUT},
        "servers": [{"url": public_url}],
        "security": [{"operator": []}, {"board": []}],
        "components": {
            "securitySchemes": {
                "operator": {"type": "http", "scheme": "bearer", "description": TOKEN},
                "board": {"type": "apiKey", "in": "cookie", "name": cookie, "description": COOKIE},
            },
            "schemas": {
                **{
                    name: {**shape_schema(shape, fields), "description": text}
                    for name, (text, shape) in named.items()
                },
                "Error": _error(codes),
            },
            "responses": {
                "Refused": {
                    "description": "Refused: code says why, error what to do next.",
                    "headers": {
                        "Retry-After": {
                            "description": "seconds after which trying again makes sense",
                            "schema": {"type": "integer"},
                        }
                    },
                    "content": _json({"$ref": "#/components/schemas/Error"}),
                }
            },
        },
        "paths": paths,
    }


def shape_schema(
    shape: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The JSON Schema of a shape.

    Args:
        shape: its fields.
        fields: those of every shape that has a name.
    """
    whole: dict[str, Any] = {}
    for name, kind in shape.items():
        whole |= fields[kind] if name == "..." else {name: kind}
    return {
        "type": "object",
        "required": [name for name in whole if not name.endswith("?")],
        "properties": {name.removesuffix("?"): _type(kind) for name, kind in whole.items()},
    }


def _type(kind: Any) -> dict[str, Any]:
    if isinstance(kind, list):
        listed: dict[str, Any] = {"type": "array", "items": _type(kind[0])}
        return _or_null(listed) if None in kind else listed
    if kind.endswith("|null"):
        return _or_null(_type(kind.removesuffix("|null")))
    if kind.startswith("="):
        return {"type": "string", "enum": kind[1:].split(",")}
    if kind in SCALARS:
        return dict(SCALARS[kind])
    return {"$ref": f"#/components/schemas/{kind}"}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [dict(schema), {"type": "null"}]}


def _error(codes: Iterable[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "description": "Why a call was refused; there may be more fields, by code.",
        "required": ["error", "code"],
        "properties": {
            "error": {"type": "string", "description": "for people, with the next step"},
            "code": {"type": "string", "enum": sorted(codes)},
            "field": {"type": "string", "description": "the argument that is wrong"},
            "reason": {"type": "string"},
        },
    }


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _described(operation: Operation, fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    refused = {"$ref": "#/components/responses/Refused"}
    shown: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.path.split("/")[3]],
        "summary": operation.description,
        "parameters": [
            {
                "name": name,
                "in": schema["in"],
                "required": name in operation.required,
                "schema": _argument(schema, required=True),
            }
            for name, schema in operation.arguments.items()
            if schema["in"] in ("path", "query")
        ],
        "responses": {
            "200": {
                "description": "Done.",
                "content": _json(shape_schema(operation.answer, fields)),
            },
            "4XX": refused,
            "5XX": refused,
        },
    }
    if operation.body_limit:
        shown["requestBody"] = {
            "required": any(
                schema["in"] in ("body", "whole body") and name in operation.required
                for name, schema in operation.arguments.items()
            ),
            "description": f"At most {operation.body_limit} bytes.",
            "content": _json(_body(operation)),
        }
    return shown


def _body(operation: Operation) -> Mapping[str, Any]:
    given = {n: s for n, s in operation.arguments.items() if s["in"] in ("body", "whole body")}
    for schema in given.values():
        if schema["in"] == "whole body":
            whole: Mapping[str, Any] = schema["schema"]
            return whole
    body: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: _argument(schema, required=name in operation.required)
            for name, schema in given.items()
        },
    }
    required = [name for name in operation.required if name in given]
    return {**body, "required": required} if required else body


def _argument(schema: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    """The schema of an argument; one that may be left out may be null, too."""
    shown = {key: value for key, value in schema.items() if key != "in"}
    if shown.get("type") == "integer":
        shown = {"minimum": -MOST, "maximum": MOST, **shown}
    if "enum" in shown:
        shown["type"] = "string"
    if required or "type" not in shown:
        return shown
    if "enum" in shown:
        shown["enum"] = [*shown["enum"], None]
    return {**shown, "type": [shown["type"], "null"]}
