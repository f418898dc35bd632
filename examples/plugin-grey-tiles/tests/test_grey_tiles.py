"""The conformance kit, and the order of the tiles."""

import pytest
from PIL import Image
from tokenmill_grey_tiles.processor import GreyTiles

from tokenmill.plugin import InvalidRequestError
from tokenmill.testing import MediaProcessorConformance, PackageConformance


class TestGreyTiles(MediaProcessorConformance):
    @pytest.fixture
    def media_processor(self) -> type[GreyTiles]:
        return GreyTiles


class TestPackage(PackageConformance):
    @pytest.fixture
    def plugin_name(self) -> str:
        return "grey-tiles"


def test_tiles_come_row_by_row() -> None:
    image = Image.new("RGB", (128, 128))
    image.paste((255, 255, 255), (64, 0, 128, 64))
    done = GreyTiles({"tiles": 2}, {}).process(image)
    assert [set(one.data) == {255} for one in done.items] == [False, True, False, False]
    assert done.text == "<image><image>\n<image><image>"


def test_thin_images_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="100 times"):
        GreyTiles({}, {}).process(Image.new("RGB", (1, 101)))
