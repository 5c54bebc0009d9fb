"""The system spaces of users, roles and privileges, in memory."""

from typing import Any

KEYS = {304: (0,), 312: (1, 2, 3), 280: (0,), 296: (0,)}


class AccessCatalogue:
    """The system spaces `_space`, `_user` and `_priv` in memory, with the operator's requests."""

    def __init__(self) -> None:
        self.rows: dict[int, list[list[Any]]] = {
            280: [[512, 1, "orders", "memtx", 0, {}, []]],
            304: [[1, 1, "admin", "user", {}], [2, 1, "public", "role", {}],
                  [32, 1, "app", "user", {}]],
            312: [[1, 32, "universe", 0, 255]],
            296: [[1, 1, "box.schema.user.info", 1, "LUA"], [66, 1, "LEAST", 1, "SQL_BUILTIN"]],
        }  # fmt: skip
        self.writes = 0

    def select(self, space: int, key: list[Any] | None = None, index: int = 0) -> list[list[Any]]:
        field = 2 if index == 2 else KEYS[space][0]
        return [row for row in self.rows[space] if not key or row[field] == key[0]]

    def insert(self, space: int, row: list[Any]) -> None:
        assert not self._same(space, row)
        self.rows[space].append(row)
        self.writes += 1

    def replace(self, space: int, row: list[Any]) -> None:
        self.rows[space] = [old for old in self.rows[space] if old not in self._same(space, row)]
        self.rows[space].append(row)
        self.writes += 1

    def delete(self, space: int, key: list[Any]) -> None:
        self.rows[space] = [r for r in self.rows[space] if [r[f] for f in KEYS[space]] != key]
        self.writes += 1

    def _same(self, space: int, row: list[Any]) -> list[list[Any]]:
        fields = KEYS[space]
        return [r for r in self.rows[space] if all(r[f] == row[f] for f in fields)]

    def grants(self, name: str) -> dict[tuple[str, int], int]:
        user = next(row[0] for row in self.rows[304] if row[2] == name)
        return {(r[2], r[3]): r[4] for r in self.rows[312] if r[1] == user}
