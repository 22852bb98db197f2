#!/usr/bin/env python3
"""Log-probabilities of llama.cpp for given token ids (used by make_logits_fixtures.py).

llama.cpp is fed one token per llama_decode call, as when it generates: it is not invariant to the
batch, so "which batch" is part of the definition. It quantises the rows to int8 in blocks of 32
before each product with a quantised weight; K/V is kept in float16.
"""

import ctypes

import llama_cpp
import numpy as np

SETTINGS = {
    "feeding": "one token per llama_decode",
    "kv_cache": "f16",
    "flash_attention": "disabled",
    "threads": 1,
}


def _quiet(level, text, user_data):
    pass


_quiet_callback = llama_cpp.llama_log_callback(_quiet)


def log_softmax(logits):
    """Natural log-probabilities over the last axis, in double."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class LlamaCpp:
    """One model and one context of at most `positions` tokens."""

    def __init__(self, model_path, positions=1024, threads=SETTINGS["threads"]):
        llama_cpp.llama_log_set(_quiet_callback, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(model_path.encode(), model_params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {model_path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = positions
        params.n_batch = positions
        params.n_ubatch = positions
        params.n_threads = threads
        params.n_threads_batch = threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_tokens = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text):
        """Token ids with special tokens parsed and no BOS added."""
        raw = text.encode()
        ids = (llama_cpp.llama_token * (len(raw) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), False, True)
        return list(ids[:count])

    def log_probs(self, tokens):
        """[len(tokens), vocabulary] teacher-forced log-probabilities of the token after each."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        rows = np.empty((len(tokens), self.vocab_tokens), np.float32)
        for position, token in enumerate(tokens):
            one = (llama_cpp.llama_token * 1)(token)
            if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(one, 1)) != 0:
                raise SystemExit(f"llama_decode failed at position {position}")
            logits = llama_cpp.llama_get_logits_ith(self.context, -1)
            rows[position] = np.ctypeslib.as_array(logits, shape=(self.vocab_tokens,))
        return log_softmax(rows)


def describe():
    """What a reader needs to repeat the numbers."""
    return {
        "implementation": "llama.cpp through llama-cpp-python, built from its source distribution",
        "llama_cpp_python": llama_cpp.__version__,
        "system_info": llama_cpp.llama_print_system_info().decode().strip(),
        **SETTINGS,
    }
