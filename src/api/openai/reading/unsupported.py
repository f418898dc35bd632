"""Fields of OpenAI's and vLLM's APIs that this server knows but does not have."""

from __future__ import annotations

from ...serving.reading.unknown_fields import Unsupported, UnsupportedFields

_NO_TRANSFER = "KV blocks are not transferred between servers"
_ONLY_TEXT = "this server writes text only"

_BOTH: UnsupportedFields = {
    "early_stopping": Unsupported("there is no beam search", (False,)),
    "ec_transfer_params": Unsupported(_NO_TRANSFER),
    "guided_decoding_backend": Unsupported("the server chooses it (--grammar-backend)"),
    "kv_transfer_params": Unsupported(_NO_TRANSFER),
    "length_penalty": Unsupported("there is no beam search", (1.0,)),
    "logits_processors": Unsupported("name their arguments in vllm_xargs", ([],)),
    "repetition_detection": Unsupported("use repetition_penalty"),
    "return_mm_kwargs": Unsupported("processed images are not returned", (False,)),
    "return_token_offsets": Unsupported("use return_token_ids", (False,)),
    "routed_experts_prompt_start": Unsupported("routing of experts is not returned"),
    "service_tier": Unsupported("use 'auto' or 'default'", ("auto", "default")),
    "store": Unsupported("this server stores no answers", (False,)),
    "use_beam_search": Unsupported("there is no beam search", (False,)),
    "watermarking": Unsupported("answers have no watermark", (False,)),
}
IN_COMPLETIONS: UnsupportedFields = {
    **_BOTH,
    "prompt_embeds": Unsupported("send text or token ids"),
    "suffix": Unsupported("this model does not fill in the middle", ("",)),
    "thinking_token_budget": Unsupported("use chat completions, where reasoning has an end"),
}
IN_CHAT: UnsupportedFields = {
    **_BOTH,
    "add_special_tokens": Unsupported("the chat template writes the special tokens", (False,)),
    "audio": Unsupported(_ONLY_TEXT),
    "chat_template": Unsupported("the template of the server is used (--chat-template)"),
    "echo": Unsupported("the client has the messages", (False,)),
    "function_call": Unsupported("use tool_choice", ("none", "auto")),
    "functions": Unsupported("use tools", ([],)),
    "media_io_kwargs": Unsupported("images are decoded in one way", ({},)),
    "mm_processor_kwargs": Unsupported(
        "they are the same for all requests (--mm-processor-kwargs)", ({},)
    ),
    "modalities": Unsupported(_ONLY_TEXT, (["text"],)),
    "moderation": Unsupported("this server does not moderate"),
    "prediction": Unsupported("use --speculative-method ngram"),
    "return_prompt_text": Unsupported("use return_token_ids", (False,)),
    "verbosity": Unsupported("ask for it in the messages", ("medium",)),
    "web_search_options": Unsupported("this server does not search"),
}
