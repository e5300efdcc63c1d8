"""Recall@k, NDCG@k and the all-ranking protocol."""

from privirec.evaluation.ranking import Metrics, evaluate

__all__ = ["Metrics", "evaluate"]
