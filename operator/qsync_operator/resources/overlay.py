"""Merges `spec.podTemplate` into the built pod: maps by key, and named lists by name."""

from typing import Any


def overlay(base: object, given: object) -> Any:
    """Return `base` with the values of `given`; lists that are not named are replaced."""
    if isinstance(base, dict) and isinstance(given, dict):
        merged = dict(base)
        for key, value in given.items():
            merged[key] = overlay(base[key], value) if key in base else value
        return merged
    if isinstance(base, list) and isinstance(given, list) and _are_named([*base, *given]):
        return _named(base, given)
    return given


def _are_named(items: list[Any]) -> bool:
    return bool(items) and all(isinstance(item, dict) and "name" in item for item in items)


def _named(base: list[dict[str, Any]], given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_name = {item["name"]: item for item in given}
    kept = [
        overlay(item, by_name.pop(item["name"])) if item["name"] in by_name else item
        for item in base
    ]
    return kept + [item for item in given if item["name"] in by_name]
