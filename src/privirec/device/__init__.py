"""Code on the device: a client's local store, installed artifacts, recommending and explaining."""

from typing import TYPE_CHECKING

from privirec.compiled import exported
from privirec.data.catalogue import Catalogue

if TYPE_CHECKING:
    from privirec.device.installed import Installed
    from privirec.device.recommend import (
        Cause,
        Device,
        FoundItem,
        Recommendation,
        find_items,
        load_model,
    )
    from privirec.device.store import Store
else:
    recommending = ("Cause", "Device", "FoundItem", "Recommendation", "find_items", "load_model")
    __getattr__ = exported(
        __name__,
        {
            **dict.fromkeys(recommending, "recommend"),
            "Installed": "installed",
            "Store": "store",
        },
    )
