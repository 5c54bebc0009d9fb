"""What a field means: the text under it in the models, put into the schema.

pydantic can read these itself, but does so whenever a model is imported, and the command line
would pay for it each time. Only those who make definitions and pages need them.
"""

import ast
import inspect
import textwrap
from typing import Any

from pydantic import BaseModel

from qsync_operator.models.base import SpecModel, StatusModel


def field_words(model: type[BaseModel]) -> dict[str, str]:
    """Field name -> its text, those of its bases included."""
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
    """A JSON schema of pydantic's, with every text at its field."""
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
