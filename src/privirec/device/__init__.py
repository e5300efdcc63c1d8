"""On the device: the local store of a client, installed artifacts, recommending and explaining."""

from typing import TYPE_CHECKING

from privirec.compiled import exported
from privirec.data.catalogue import Catalogue

if TYPE_CHECKING:
    from privirec.device.installed import Installed
    from privirec.device.recommend import Cause, Device, Recommendation, load_model
    from privirec.device.store import Store
else:
    recommending = ("Cause", "Device", "Recommendation", "load_model")
    __getattr__ = exported(
        __name__,
        {
            **dict.fromkeys(recommending, "recommend"),
            "Installed": "installed",
            "Store": "store",
        },
    )

__all__ = [
    "Catalogue",
    "Cause",
    "Device",
    "Installed",
    "Recommendation",
    "Store",
    "load_model",
]
