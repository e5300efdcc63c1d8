"""Results published in the paper, for comparison with ours. No computation uses them."""

from __future__ import annotations

# NDCG@20 of the paper's main table (centralised, PriviRec with L = 2), and of its comparison with
# other models, for which it has no results with clients.
NDCG: dict[str, dict[str, tuple[float, float | None]]] = {
    "gowalla": {
        "gf-cf": (0.1518, 0.1528),
        "turbo-cf": (0.1531, 0.1531),
        "bspm-lm": (0.1570, 0.1580),
        "bspm-em": (0.1597, 0.1595),
        "ease": (0.1467, None),
        "linkprop": (0.1477, None),
        "linkprop-multi": (0.1573, None),
    },
    "yelp2018": {
        "gf-cf": (0.0571, 0.0561),
        "turbo-cf": (0.0574, 0.0574),
        "bspm-lm": (0.0584, 0.0576),
        "bspm-em": (0.0593, 0.0589),
        "ease": (0.0552, None),
        "linkprop": (0.0559, None),
        "linkprop-multi": (0.0571, None),
    },
    "amazon-book": {
        "gf-cf": (0.0584, 0.0584),
        "turbo-cf": (0.0611, 0.0611),
        "bspm-lm": (0.0610, 0.0610),
        "bspm-em": (0.0609, 0.0609),
        "ease": (0.0567, None),
        "linkprop": (0.0559, None),
        "linkprop-multi": (0.0588, None),
    },
}

# Smallest k at which PriviRec-k is competitive with PriviRec in the paper's figure.
COMPETITIVE_RANK = {"gowalla": 2048, "yelp2018": 2816}

# Settings of the paper's communication costs: L, k_2, epochs e, embedding size k_3.
COST_ROUNDS, COST_RANK, COST_EPOCHS, COST_EMBEDDING = 3, 2000, 1000, 64
