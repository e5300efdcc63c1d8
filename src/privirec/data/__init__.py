"""Interactions, file formats, the catalogue of data sets, splits and synthetic data."""

from privirec.data.columns import TableOptions
from privirec.data.datasets import Statistics, load_dataset, load_everything, statistics
from privirec.data.formats import read_interactions
from privirec.data.interactions import Dataset, Interactions
from privirec.data.splits import split, validation_split
from privirec.data.text import read_text, write_text

__all__ = [
    "Dataset",
    "Interactions",
    "Statistics",
    "TableOptions",
    "load_dataset",
    "load_everything",
    "read_interactions",
    "read_text",
    "split",
    "statistics",
    "validation_split",
    "write_text",
]
