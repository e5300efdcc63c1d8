"""Pictures that the commands draw, one module each, as PNG and SVG files written atomically."""

from privirec.app.pictures.canvas import check_picture, picture_files, write_picture
