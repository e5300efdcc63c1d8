"""Interactions, file formats, known data sets, the item catalogue, splits and synthetic data."""

from typing import TYPE_CHECKING

from privirec.compiled import exported

if TYPE_CHECKING:
    from privirec.data.columns import TableOptions
    from privirec.data.datasets import Statistics, load_dataset, load_everything, statistics
    from privirec.data.formats import read_interactions
    from privirec.data.interactions import Dataset, Interactions
    from privirec.data.splits import split, validation_split
    from privirec.data.text import read_text, write_text
else:
    __getattr__ = exported(
        __name__,
        {
            **dict.fromkeys(
                ("Statistics", "load_dataset", "load_everything", "statistics"), "datasets"
            ),
            **dict.fromkeys(("Dataset", "Interactions"), "interactions"),
            **dict.fromkeys(("split", "validation_split"), "splits"),
            **dict.fromkeys(("read_text", "write_text"), "text"),
            "TableOptions": "columns",
            "read_interactions": "formats",
        },
    )
