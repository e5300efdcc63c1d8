"""Pure, centralised mathematics: normalisation, item-item matrix, low-pass filter."""

from privirec.filters.components import Components, LowPass, centralized, factored, randomized
from privirec.filters.normalize import Normalisation
from privirec.filters.operators import FactoredOperator, LowRankOperator, SparseOperator
