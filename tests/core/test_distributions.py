"""Against printed tables, sums done term by term, and each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wastegate.core.distributions import (
    beta_cdf,
    binomial_cdf,
    normal_cdf,
    normal_quantile,
    student_cdf,
    student_quantile,
)


@pytest.mark.parametrize(
    ("p", "df", "table"),
    [(0.975, 1, 12.706), (0.975, 5, 2.571), (0.975, 10, 2.228), (0.995, 7, 3.499), (0.95, 30, 1.697), (0.5, 4, 0.0)],
)
def test_students_table(p: float, df: float, table: float) -> None:
    assert student_quantile(p, df) == pytest.approx(table, abs=5e-4)
    assert student_quantile(1 - p, df) == pytest.approx(-table, abs=5e-4)


def test_student_with_many_degrees_is_normal() -> None:
    assert student_quantile(0.975, 1e7) == pytest.approx(normal_quantile(0.975), rel=1e-5)
    assert student_cdf(1.0, 1e7) == pytest.approx(normal_cdf(1.0), rel=1e-5)


@given(st.floats(0.001, 0.999), st.floats(1.0, 500.0))
def test_quantile_and_share_undo_each_other(p: float, df: float) -> None:
    assert student_cdf(student_quantile(p, df), df) == pytest.approx(p, abs=1e-9)


@given(st.integers(1, 60), st.floats(0.01, 0.99), st.data())
def test_binomial_term_by_term(n: int, p: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(-1, n))
    terms = (math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))
    assert binomial_cdf(k, n, p) == pytest.approx(sum(terms), abs=1e-10)


def test_the_ends_of_the_binomial() -> None:
    assert (binomial_cdf(-1, 5, 0.5), binomial_cdf(5, 5, 0.5)) == (0.0, 1.0)


def test_a_million_tries() -> None:
    spread = math.sqrt(1e6 * 0.95 * 0.05)
    assert binomial_cdf(950_100, 1_000_000, 0.95) == pytest.approx(normal_cdf(100.5 / spread), abs=1e-3)


def test_the_ends_of_beta() -> None:
    assert beta_cdf(0.0, 2.0, 3.0) == 0.0
    assert beta_cdf(1.0, 2.0, 3.0) == 1.0
    assert beta_cdf(0.25, 1.0, 1.0) == pytest.approx(0.25)


@given(st.integers(0, 1024), st.floats(0.1, 200.0), st.floats(0.1, 200.0))
def test_beta_and_its_mirror_image(part: int, a: float, b: float) -> None:
    x = part / 1024  # so that 1 - x is exact
    share = beta_cdf(x, a, b)
    assert 0.0 <= share <= 1.0 + 1e-12
    assert share + beta_cdf(1.0 - x, b, a) == pytest.approx(1.0, abs=1e-9)
