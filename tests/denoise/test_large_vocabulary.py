"""What is different at a large V: more rows at once for the head."""

import pytest
import torch

import tauflow

V = 2**16 + 1


@pytest.mark.parametrize("sampler", ["bridge_systematic", "tr_cie", "tweedie_d3pm"])
def test_a_head_is_given_more_than_a_few_rows(sampler):
    """Most of the time of a head is spent on its weights, which it reads once for all rows of a call."""
    sizes = []

    class Wide:
        def hidden(self, x, t):
            return x[..., None].float()

        def head(self, rows):
            sizes.append(len(rows))
            return torch.zeros(len(rows), V)

    model = tauflow.Model(Wide(), tauflow.Mixture(tauflow.Uniform(V), "linear"), (40,))
    tauflow.sample(model, sampler, 2, count=1)
    assert max(sizes) == 16
    assert sizes[-1] == 40 % 16  # the last step reads all 40 rows
