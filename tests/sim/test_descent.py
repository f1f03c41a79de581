from __future__ import annotations

import numpy as np
import pytest

from wastegate.sim.descent import Values, descend

AT = np.linspace(1, 10, 30)


def model(sets: list[Values]) -> list[Values]:
    return [np.log(a * AT + b) for a, b in sets]


def test_parameters_are_found_back_from_afar() -> None:
    measured = np.log(3.0 * AT + 0.5)
    found = descend(model, measured, np.array([1.0, 2.0]), np.array([3.0, 3.0]), rounds=8)
    assert found == pytest.approx([3.0, 0.5], rel=0.06)


def test_a_few_odd_measurements_do_not_decide() -> None:
    measured = np.log(3.0 * AT + 0.5)
    measured[::10] += 2.0
    measured[5] = np.nan
    found = descend(model, measured, np.array([2.0, 0.5]), np.array([3.0, 3.0]), rounds=8)
    assert found[0] == pytest.approx(3.0, rel=0.15)


def test_what_nothing_is_known_of_stays_where_it_was() -> None:
    def blind(sets: list[Values]) -> list[Values]:
        return [np.log(a * AT) for a, _ in sets]

    found = descend(blind, np.log(2.0 * AT), np.array([1.0, 0.7]), np.array([1.0, 0.5]), rounds=6)
    assert found == pytest.approx([2.0, 0.7], rel=0.02)
