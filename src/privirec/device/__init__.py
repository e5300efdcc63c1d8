"""On the device: the local store of a client, installed artifacts, recommending and explaining."""

from privirec.data.catalogue import Catalogue
from privirec.device.installed import Installed
from privirec.device.recommend import Cause, Device, Recommendation, load_model
from privirec.device.search import FoundItem, find_items
from privirec.device.store import Store

__all__ = [
    "Catalogue",
    "Cause",
    "Device",
    "FoundItem",
    "Installed",
    "Recommendation",
    "Store",
    "find_items",
    "load_model",
]
