"""Recall@k, NDCG@k and the all-ranking protocol."""
