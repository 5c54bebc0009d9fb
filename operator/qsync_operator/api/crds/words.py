"""Field descriptions: inserts the text below each field of a model into the schema.

pydantic can read these texts itself, but only whenever a model is imported, which would slow every
command down. Only the generators of definitions and pages need them.
"""

import ast
import inspect
import textwrap
from typing import Any

from pydantic import BaseModel

from qsync_operator.api.base import SpecModel, StatusModel


def field_words(model: type[BaseModel]) -> dict[str, str]:
    """Return the description of each field by name, including those of base classes."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if not issubclass(kind, BaseModel) or kind in (BaseModel, SpecModel, StatusModel):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def speak(document: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return a JSON schema of pydantic's, with the description of every field."""
    for name, node in (*document.get("$defs", {}).items(), (model.__name__, document)):
        kind = _models().get(name)
        if kind is None:
            continue
        words = field_words(kind)
        for field, described in kind.model_fields.items():
            alias = str(described.validation_alias or described.alias or field)
            if field in words and alias in node.get("properties", {}):
                node["properties"][alias]["description"] = words[field]
    return document


def _models() -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {}
    waiting: list[type[BaseModel]] = [SpecModel, StatusModel]
    while waiting:
        kind = waiting.pop()
        found[kind.__name__] = kind
        waiting += kind.__subclasses__()
    return found
