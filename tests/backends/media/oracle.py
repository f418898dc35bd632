"""What transformers makes of the same image."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tokenmill.core.contract.providers.media_processing import ProcessedImage

Tiles = npt.NDArray[np.uint8]
"""uint8 [tiles, height, width, 3]."""
CLASSES = {"idefics3": Idefics3ImageProcessorPil, "smolvlm": SmolVLMImageProcessorPil}


def theirs(data: bytes, config: dict[str, Any]) -> Tiles:
    """The tiles of transformers' processor, from the bytes of a file."""
    names = "size", "max_image_size", "do_image_splitting", "resample"
    settings = {name: config[name] for name in names if name in config}
    # Without scaling, which the encoder does, pixels stay whole numbers.
    made = CLASSES[config["model_type"]](**settings, do_rescale=False, do_normalize=False)
    image = ImageOps.exif_transpose(Image.open(BytesIO(data)))
    tiles = np.moveaxis(made(image, return_tensors="np")["pixel_values"][0], 1, -1)
    assert (tiles == tiles.astype(np.uint8)).all()
    return tiles.astype(np.uint8)


def ours(image: ProcessedImage) -> Tiles:
    """The tiles of our processor."""
    tiles = [np.frombuffer(one.data, np.uint8).reshape(one.shape) for one in image.items]
    return np.stack(tiles)
