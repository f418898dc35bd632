"""transformers' answers to chats with images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image

_OF_IMAGES = ("pixel_values", "image_grid_thw", "image_sizes")
"""The encoder's inputs, where the processor makes them."""


class ImageReference:
    """A model of transformers with its processor, in float32."""

    def __init__(self, model: Any, processor: Any, image_token: str) -> None:
        """`image_token`: the placeholder."""
        self._model, self._processor = model, processor
        self.image_token_id = int(processor.tokenizer.convert_tokens_to_ids(image_token))

    def text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt before images are in it. Images are parts `{"type": "image"}`."""
        text: str = self._processor.apply_chat_template(messages, add_generation_prompt=True)
        return text

    def inputs(self, messages: Sequence[Mapping[str, Any]], images: Sequence[Image.Image]) -> Any:
        """The inputs of the model."""
        return self._processor(
            text=self.text(messages),
            images=[list(images)] if images else None,
            return_tensors="pt",
        )

    def rows(
        self, messages: Sequence[Mapping[str, Any]], images: Sequence[Image.Image]
    ) -> torch.Tensor:
        """The rows of the first image."""
        inputs = self.inputs(messages, images)
        given = {name: inputs[name] for name in _OF_IMAGES if name in inputs}
        with torch.inference_mode():
            found = self._model.model.get_image_features(**given, return_dict=True)
        rows: torch.Tensor = found.pooler_output[0]
        return rows

    def answer(
        self, messages: Sequence[Mapping[str, Any]], images: Sequence[Image.Image], num_tokens: int
    ) -> tuple[list[int], list[int]]:
        """The token ids of the prompt, and of the greedy answer."""
        inputs = self.inputs(messages, images)
        prompt = inputs["input_ids"][0].tolist()
        with torch.no_grad():
            found = self._model.generate(
                **inputs, do_sample=False, max_new_tokens=num_tokens, min_new_tokens=num_tokens
            )
        return prompt, found[0, len(prompt) :].tolist()
