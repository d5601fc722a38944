"""Pictures of tensors."""

import matplotlib
import numpy as np
import pytest

from minibert.utils.plotting import DIVERGING, SEQUENTIAL, head_grid, heat_map

matplotlib.use("Agg")


def test_a_heat_map_draws_the_numbers_it_was_given_under_their_labels():
    axes = heat_map([[0.0, 0.5, 1.0], [0.25, 0.5, 0.25]], ["the", "cat"], ["a", "b", "c"], title="probs")
    image = axes.get_images()[0]
    assert np.array_equal(image.get_array(), [[0.0, 0.5, 1.0], [0.25, 0.5, 0.25]])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["the", "cat"]
    assert axes.get_title() == "probs"


@pytest.mark.parametrize(
    ("matrix", "limit", "colours", "limits"),
    [
        ([[-2.0, 1.0]], None, DIVERGING, (-2.0, 2.0)),  # white is 0
        ([[0.25, 0.5]], 1.0, SEQUENTIAL, (0.0, 1.0)),
        ([[0.0, 0.0]], None, SEQUENTIAL, (0.0, 1.0)),
    ],
)
def test_the_colours_follow_the_signs_and_the_limit(matrix, limit, colours, limits):
    image = heat_map(matrix, limit=limit).get_images()[0]
    assert (image.get_cmap().name, image.get_clim()) == (colours, limits)


def test_a_head_grid_has_one_map_for_each_head_and_labels_at_its_edges_only():
    probs = np.random.default_rng(0).dirichlet(np.ones(2), size=(5, 2))
    figure = head_grid(probs, ["a", "b"], across=3)
    drawn = [axes.get_images()[0].get_array() for axes in figure.axes]
    assert np.array_equal(drawn, probs)
    assert [axes.get_title() for axes in figure.axes] == [f"head {number}" for number in range(5)]
    assert [len(axes.get_yticks()) for axes in figure.axes] == [2, 0, 0, 2, 0]
    assert [len(axes.get_xticks()) for axes in figure.axes] == [0, 0, 2, 2, 2]
