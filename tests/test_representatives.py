"""Quick tests have each value of each parameter, and few combinations of them."""

from itertools import product

from representatives import representatives


def test_a_product_has_as_many_as_its_longest_parameter():
    """Each value comes once, and values change together."""
    assert representatives(product("abc", "xyz")) == {("a", "x"), ("b", "y"), ("c", "z")}
    assert len(representatives(product("ab", "wxyz", "12"))) == 4


def test_combinations_that_nothing_covers_stay():
    """A value that comes in one combination keeps this one."""
    chosen = [("a", "x"), ("a", "y"), ("b", "z")]
    assert representatives(chosen) == set(chosen)


def test_every_value_is_there():
    """Whatever was left out of the product by hand."""
    chosen = [one for one in product("abcd", "wxyz", "12") if one[0] != "a" or one[1] == "z"]
    found = representatives(chosen)
    assert {*map(frozenset, zip(*found, strict=True))} == {
        *map(frozenset, zip(*chosen, strict=True))
    }
    assert len(found) < len(chosen) / 3
