"""Indexes compared with a sorted dict: confirmed ones, layers, and layers over layers."""

from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsync_node.engine import index
from qsync_node.engine.index import HashIndex, LayerIndex, TreeIndex, range_after, range_of
from qsync_node.engine.keydef import KeyDef, KeyPart
from qsync_node.format import keys as protocol

PLAIN = KeyDef([KeyPart(0, "integer")], True, [KeyPart(0, "integer")])
PAIR = KeyDef([KeyPart(0, "integer"), KeyPart(1, "string")], True, [KeyPart(0, "integer")])
KEYS = st.integers(0, 30)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.binary(min_size=1, max_size=3)), max_size=60)
ITERATORS = [
    protocol.EQ,
    protocol.REQ,
    protocol.ALL,
    protocol.LT,
    protocol.LE,
    protocol.GE,
    protocol.GT,
]


def matches(iterator: int, key: object, prefix: tuple[Any, ...]) -> bool:
    head = ((key,) if not isinstance(key, tuple) else key)[: len(prefix)]
    if iterator in (protocol.EQ, protocol.REQ):
        return head == prefix
    if iterator in (protocol.GE, protocol.ALL):
        return head >= prefix
    if iterator == protocol.GT:
        return head > prefix or not prefix
    return head <= prefix if iterator == protocol.LE else head < prefix or not prefix


def expect(model: dict[Any, bytes], iterator: int, prefix: tuple[Any, ...]) -> list[Any]:
    found = sorted(item for item in model.items() if matches(iterator, item[0], prefix))
    is_reverse = iterator in (protocol.REQ, protocol.LT, protocol.LE)
    return found[::-1] if is_reverse else found


def apply(model: dict[Any, bytes], target: Any, changes: list[tuple[Any, bytes | None]]) -> None:
    for key, packed in changes:
        target.put(key, packed)
        if packed is None:
            model.pop(key, None)
        else:
            model[key] = packed


@given(CHANGES, CHANGES, st.sampled_from(ITERATORS), st.none() | KEYS)
def test_tree_scans_as_a_sorted_dict(
    first: list[Any], second: list[Any], iterator: int, key: int | None
) -> None:
    model: dict[Any, bytes] = {}
    tree = TreeIndex(PLAIN)
    bounds = range_of(PLAIN, iterator, () if key is None else (key,))
    for changes in (first, second):
        apply(model, tree, changes)
        wanted = expect(model, iterator, () if key is None else (key,))
        assert list(tree.scan(bounds)) == wanted
        assert len(tree) == len(model)


@given(CHANGES, CHANGES, CHANGES, st.sampled_from(ITERATORS), st.none() | KEYS)
def test_layers_scan_as_if_applied(
    below: list[Any], middle: list[Any], above: list[Any], iterator: int, key: int | None
) -> None:
    model: dict[Any, bytes] = {}
    tree = TreeIndex(PLAIN)
    apply(model, tree, below)
    confirmed = dict(model)
    pending = LayerIndex(PLAIN, tree, is_tree=True)
    apply(model, pending, middle)
    private = LayerIndex(PLAIN, pending, is_tree=True)
    apply(model, private, above)
    bounds = range_of(PLAIN, iterator, () if key is None else (key,))
    wanted = expect(model, iterator, () if key is None else (key,))
    assert list(private.scan(bounds)) == wanted
    assert {k: private.get(k) for k in range(31)} == {k: model.get(k) for k in range(31)}
    assert dict(tree.entries()) == confirmed


@given(CHANGES, CHANGES)
def test_hash_layers_hold_what_was_applied(below: list[Any], above: list[Any]) -> None:
    model: dict[Any, bytes] = {}
    confirmed = HashIndex(PLAIN)
    apply(model, confirmed, below)
    layer = LayerIndex(PLAIN, confirmed, is_tree=False)
    apply(model, layer, above)
    assert dict(layer.entries()) == model
    assert len(layer) == len(model)
    assert list(confirmed.view()) == [v for _, v in sorted(confirmed.tuples.items())]


@pytest.mark.parametrize("kind", [TreeIndex, HashIndex])
@pytest.mark.parametrize("seed", range(30))
def test_view_stays_as_it_was_while_the_index_changes(
    kind: type[TreeIndex | HashIndex], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    monkeypatch.setattr(index, "FRESH_KEYS_MAX", rng.choice([1, 3, 50]))
    monkeypatch.setattr(index, "VIEW_KEYS", rng.choice([1, 2, 7]))
    changing = kind(PLAIN)
    views: list[tuple[list[bytes], Any, list[bytes]]] = []
    for number in range(400):
        if number % 90 == 40:
            wanted = [packed for _, packed in sorted(changing.tuples.items())]
            view = changing.view()
            views += [(wanted, iter(view), []), (wanted, iter(view), [])]
        key = rng.randrange(60)
        changing.put(key, None if rng.random() < 0.4 else b"%d" % number)
        for _, left, seen in views:
            if rng.random() < 0.2:
                seen += islice(left, rng.randrange(4))
        if rng.random() < 0.05:
            list(changing.entries())
    for wanted, left, seen in views:
        assert [*seen, *left] == wanted


@given(
    st.lists(st.tuples(st.tuples(st.integers(0, 4), st.sampled_from("abc")), st.just(b"x"))),
    st.sampled_from(ITERATORS),
    st.sampled_from([(), (2,), (2, "b"), (9,)]),
)
def test_partial_keys_are_prefixes(
    changes: list[Any], iterator: int, prefix: tuple[Any, ...]
) -> None:
    model: dict[Any, bytes] = {}
    tree = TreeIndex(PAIR)
    apply(model, tree, changes)
    assert list(tree.scan(range_of(PAIR, iterator, prefix))) == expect(model, iterator, prefix)


def test_order_catches_up_when_many_keys_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "FRESH_KEYS_MAX", 4)
    tree = TreeIndex(PLAIN)
    model: dict[Any, bytes] = {}
    everything = range_of(PLAIN, protocol.ALL, ())
    for step in range(200):
        key = step * 37 % 101
        apply(model, tree, [(key, None if step % 7 == 3 else b"%d" % step)])
        if step % 50 == 49:
            assert list(tree.scan(everything)) == sorted(model.items())


def test_a_settled_put_stays_hidden_by_a_later_one() -> None:
    """The confirmed first version of a key stays hidden while a deletion of the key is pending."""
    tree = TreeIndex(PLAIN)
    layer = LayerIndex(PLAIN, tree, is_tree=True)
    same = b"x"
    puts: list[index.IndexPut] = [(0, 1, same), (0, 1, None), (0, 1, same)]
    for put in puts:
        layer.take(put)
    seen = []
    for put in puts:
        tree.put(put[1], put[2])
        layer.settle(put)
        seen.append((layer.get(1), len(layer.puts)))
    assert seen == [(same, 1), (same, 1), (same, 0)]


@pytest.mark.parametrize("iterator", ITERATORS)
@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("offset", [10, 1_000])
def test_offset_leaves_out_as_many_tuples(iterator: int, is_after: bool, offset: int) -> None:
    """A large offset is skipped without a walk over its entries."""
    tree = TreeIndex(PAIR)
    model: dict[Any, bytes] = {}
    keys = [(number // 1_200, f"{number:04}") for number in range(3_600)]
    apply(model, tree, [(key, repr(key).encode()) for key in keys])
    bounds = range_of(PAIR, iterator, (1,))
    wanted = expect(model, iterator, (1,))
    if is_after:
        bounds = range_after(bounds, wanted[0][0])
        wanted = wanted[1:]
    assert list(tree.tuples_in(bounds, offset)) == [packed for _, packed in wanted[offset:]]
    assert len(wanted) > offset
