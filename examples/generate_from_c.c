/* Answers one prompt, streaming, from C.
 *
 *     build/cpu/examples/generate_from_c [MODEL.gguf] PROMPT
 *
 * Without a model: smollm2, which ./quickstart fetches. Exit code 1 if a call fails.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "kdtree/kdtree.h"

static void check(kdtree_status status, const char* what) {
    if (status == KDTREE_OK) return;
    fprintf(stderr, "error: %s: status %d: %s\n", what, (int)status, kdtree_last_error());
    exit(1);
}

int main(int argc, char** argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: generate_from_c [MODEL.gguf] PROMPT\n");
        return 2;
    }
    kdtree_options options = {0};
    options.struct_bytes = sizeof options;
    options.model = argc == 3 ? argv[1] : NULL;
    kdtree_engine* engine = NULL;
    check(kdtree_engine_create(&options, &engine), "loading the model");

    /* A whole program would send the prompt through kdtree_apply_chat_template(). */
    kdtree_request request = {0};
    request.struct_bytes = sizeof request;
    request.sampling.struct_bytes = sizeof request.sampling;
    request.prompt_text = argv[argc - 1];
    request.prompt_text_bytes = -1;
    request.max_tokens = 32;
    kdtree_request_id id = 0;
    check(kdtree_submit(engine, &request, &id, 1), "the request");

    check(kdtree_start(engine), "the stepping thread");
    int32_t finish_reason = KDTREE_FINISH_NONE;
    while (finish_reason == KDTREE_FINISH_NONE) {
        kdtree_delta* delta = NULL;
        check(kdtree_poll(engine, id, -1, &delta), "polling");
        fwrite(delta->text, 1, (size_t)delta->text_bytes, stdout);
        fflush(stdout);
        finish_reason = delta->finish_reason;
        if (finish_reason == KDTREE_FINISH_ERROR) fprintf(stderr, "\nerror: %s", delta->error);
        kdtree_delta_free(delta);
    }

    kdtree_engine_stats stats = {0};
    stats.struct_bytes = sizeof stats;
    check(kdtree_stats(engine, &stats), "stats");
    printf("\n%" PRId64 " tokens in %" PRId64 " rounds (%s)\n", stats.tokens, stats.rounds,
           kdtree_version());
    kdtree_engine_free(engine);
    return finish_reason == KDTREE_FINISH_ERROR ? 1 : 0;
}
