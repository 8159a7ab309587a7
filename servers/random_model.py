"""A small random model for tests of plumbing: 256 wide, 4 layers, with a tokenizer of its own.

Both servers load it in a moment. Its text is nonsense and full of broken multi-byte characters,
which is just what such tests want. torch and transformers are imported only when it is written.
"""

import importlib
from pathlib import Path
from typing import Any

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CORPUS = (
    "The servers answer many requests at once, and each waits for the longest one in its batch.",
    "A small model knows little, but it writes quickly; its words need not mean anything at all.",
    "Numbers 0 1 2 3 4 5 6 7 8 9 10 20 50 100, a café in Zürich, a façade: 日本語, русский, 😀.",
)


def random_model(directory: Path, seed: int = 0, context_tokens: int = 2048) -> Path:
    """Write a random float32 Llama with a small byte-level tokenizer and a chat template."""
    torch: Any = importlib.import_module("torch")
    hf: Any = importlib.import_module("transformers")
    hf.utils.logging.disable_progress_bar()
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_bpe(),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        model_max_length=context_tokens,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    torch.manual_seed(seed)
    config = hf.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context_tokens,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        # Wide enough that logits differ by much more than rounding: greedy tests must not hang on
        # a tie.
        initializer_range=0.2,
        tie_word_embeddings=False,
        dtype=torch.float32,
    )
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(directory)
    hf.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def _byte_level_bpe() -> Any:
    tk: Any = importlib.import_module("tokenizers")
    bpe = tk.Tokenizer(tk.models.BPE())
    bpe.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tk.decoders.ByteLevel()
    trainer = tk.trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(_SPECIAL),
        initial_alphabet=tk.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_CORPUS, trainer)
    return bpe
