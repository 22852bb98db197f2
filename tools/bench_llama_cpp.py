#!/usr/bin/env python3
"""Times llama.cpp on a GGUF file: the speed peer of the CPU backend.

    bench_llama_cpp.py --model FILE.gguf [--threads 2] [--json OUT]

What is timed (wall clock around whole llama_decode calls, through llama-cpp-python):
  rows R     one decode of R consecutive tokens after a context of 256, logits of every row
             (what a chain or tree of R nodes would cost); the R new K/V rows are dropped after
  prefill    512 tokens into an empty context in one decode, logits of the last row
  generate   128 greedy tokens after the 256, one a decode, arg max over the vocabulary included
The kinds are interleaved round by round, so that a disturbance of the machine meets all of them;
minimum and median are reported. The minimum is the quiet machine, the median the machine as it is.
"""

import argparse
import ctypes
import datetime
import json
import pathlib
import statistics
import sys
import time

try:
    import llama_cpp
    import numpy as np
except ImportError as error:
    raise SystemExit(
        f"error: {error}: {sys.executable} has no llama.cpp. Run this with a Python that has the "
        "package llama-cpp-python (pip install llama-cpp-python; builds for some minutes)"
    ) from None

CONTEXT_TOKENS = 256
PREFILL_TOKENS = 512
GENERATED_TOKENS = 128
N_CTX = 512
ROWS = (1, 2, 4, 8)


def _quiet(level, text, user_data):
    pass


_quiet_callback = llama_cpp.llama_log_callback(_quiet)


class Peer:
    """A model with one sequence in a context of `n_ctx` tokens."""

    def __init__(self, model_path, threads, n_ctx=N_CTX, batch_tokens=PREFILL_TOKENS):
        llama_cpp.llama_log_set(_quiet_callback, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(model_path.encode(), model_params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {model_path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = batch_tokens
        params.n_ubatch = batch_tokens
        params.n_threads = threads
        params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_tokens = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.batch = llama_cpp.llama_batch_init(batch_tokens, 0, 1)

    def tokenize(self, text):
        """The tokens of `text`, with the ones that the model wants at the beginning of a prompt."""
        data = text.encode()
        tokens = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(
            self.vocab, data, len(data), tokens, len(tokens), True, True)
        if count < 0:
            raise SystemExit(f"llama.cpp cannot tokenize {len(data)} bytes")
        return list(tokens[:count])

    def decode(self, tokens, first_position, all_logits):
        """Seconds of one llama_decode."""
        self.batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            self.batch.token[row] = token
            self.batch.pos[row] = first_position + row
            self.batch.n_seq_id[row] = 1
            self.batch.seq_id[row][0] = 0
            self.batch.logits[row] = all_logits or row == len(tokens) - 1
        begin = time.perf_counter()
        status = llama_cpp.llama_decode(self.context, self.batch)
        llama_cpp.llama_synchronize(self.context)
        seconds = time.perf_counter() - begin
        if status != 0:
            raise SystemExit(f"llama_decode returned {status} for {len(tokens)} rows")
        return seconds

    def keep(self, tokens):
        """Drops every position from `tokens` on."""
        llama_cpp.llama_memory_seq_rm(self.memory, 0, tokens, -1)

    def best_token(self):
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self.vocab_tokens,)).argmax())


def measure(peer, rounds):
    """Seconds by kind; `rounds` of each, the generation and the prefill in every fourth."""
    tokens = np.random.default_rng(7).integers(1000, 40000, PREFILL_TOKENS).tolist()
    seconds = {f"rows {rows}": [] for rows in ROWS} | {"prefill": [], "generate": []}
    for index in range(rounds):
        if index % 4 == 0:
            peer.keep(0)
            seconds["prefill"].append(peer.decode(tokens, 0, all_logits=False))
            peer.keep(0)
            peer.decode(tokens[:CONTEXT_TOKENS], 0, all_logits=False)
            begin = time.perf_counter()
            for step in range(GENERATED_TOKENS):
                peer.decode([peer.best_token()], CONTEXT_TOKENS + step, all_logits=False)
            seconds["generate"].append(time.perf_counter() - begin)
            peer.keep(CONTEXT_TOKENS)
        for rows in ROWS:
            seconds[f"rows {rows}"].append(
                peer.decode(tokens[CONTEXT_TOKENS : CONTEXT_TOKENS + rows], CONTEXT_TOKENS, True))
            peer.keep(CONTEXT_TOKENS)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="the GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40, help="repeats of each rows kind")
    parser.add_argument("--json", help="write the figures here")
    args = parser.parse_args()

    peer = Peer(args.model, args.threads)
    measure(peer, 1)  # first touch of the mapped file
    seconds = measure(peer, args.rounds)

    tokens_of = {f"rows {rows}": rows for rows in ROWS}
    tokens_of |= {"prefill": PREFILL_TOKENS, "generate": GENERATED_TOKENS}
    print(f"llama-cpp-python {llama_cpp.__version__}, {args.threads} threads, "
          f"context {CONTEXT_TOKENS}")
    print(f"{'kind':<10} {'n':>4} {'min ms':>9} {'median ms':>10} {'max ms':>9} "
          f"{'tok/s best':>11} {'tok/s median':>13}")
    runs = []
    for kind, times in seconds.items():
        low, middle, high = min(times), statistics.median(times), max(times)
        run = {"kind": kind, "tokens": tokens_of[kind], "repeats": len(times),
               "ms_min": round(low * 1e3, 3), "ms_median": round(middle * 1e3, 3),
               "ms_max": round(high * 1e3, 3),
               "tokens_per_s_best": round(tokens_of[kind] / low, 1),
               "tokens_per_s_median": round(tokens_of[kind] / middle, 1)}
        runs.append(run)
        print(f"{kind:<10} {len(times):>4} {run['ms_min']:>9.2f} {run['ms_median']:>10.2f} "
              f"{run['ms_max']:>9.2f} {run['tokens_per_s_best']:>11.1f} "
              f"{run['tokens_per_s_median']:>13.1f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"schema": 1, "engine": f"llama-cpp-python {llama_cpp.__version__}",
                       "model": pathlib.Path(args.model).name,
                       "system_info": llama_cpp.llama_print_system_info().decode().strip(),
                       "date": datetime.date.today().isoformat(), "threads": args.threads,
                       "context_tokens": CONTEXT_TOKENS, "runs": runs}, out, indent=1)
            out.write("\n")


if __name__ == "__main__":
    main()
