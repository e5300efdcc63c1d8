"""Pictures that the commands draw, one file each. Off screen, PNG and SVG, whole or not at all."""

from privirec.report.pictures.canvas import check_picture, picture_files, write_picture

__all__ = ["check_picture", "picture_files", "write_picture"]
