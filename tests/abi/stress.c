/* Eight threads submit, poll, cancel and drop at random while one steps.
 *
 *     stress MODEL.gguf SECONDS caller|background [SEED]
 *
 * caller: the main thread steps; background: the library's own thread does, started and stopped all
 * the while, and requests are dropped too. Checks that every stream ends, that the tokens of the
 * deltas are those of the stats, and that the books balance at the end. Exit code 1 if not.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kdtree/kdtree.h"

enum { THREADS = 8, OPEN = 12, MAX_PROMPT = 40 };

#define REQUIRE(condition, ...)                                             \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                   \
            fprintf(stderr, " (last error: %s)\n", kdtree_last_error());    \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

typedef struct stream {
    kdtree_request_id id; /* 0: free */
    int64_t tokens;       /* polled */
    bool cancelled;
} stream;

typedef struct worker {
    kdtree_engine* engine;
    uint64_t random;
    int32_t vocabulary;
    bool drops;
    stream open[OPEN];
    int64_t submitted, tokens, aborted, finished, dropped;
} worker;

static double deadline;
static atomic_int working;
static atomic_int masks_given, masks_released, mask_calls;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void nap(long microseconds) {
    const struct timespec time = {0, microseconds * 1000};
    nanosleep(&time, NULL);
}

/* xorshift64*. */
static uint32_t random_below(worker* self, uint32_t bound) {
    self->random ^= self->random >> 12;
    self->random ^= self->random << 25;
    self->random ^= self->random >> 27;
    return (uint32_t)((self->random * UINT64_C(0x2545F4914F6CDD1D)) >> 32) % bound;
}

/* Forbids every token whose number and the answer's length are both odd. */
static int32_t mask(void* user, const int32_t* answer, int64_t answer_tokens, uint32_t* allowed,
                    int64_t allowed_words) {
    (void)answer;
    atomic_fetch_add((atomic_int*)user, 1);
    if (answer_tokens % 2 == 0) return 0;
    for (int64_t i = 0; i < allowed_words; ++i) allowed[i] &= 0x55555555u;
    return 0;
}

static void release(void* user) {
    (void)user;
    atomic_fetch_add(&masks_released, 1);
}

static void submit(worker* self, int32_t free_streams) {
    int32_t prompt[MAX_PROMPT];
    kdtree_request request = {0};
    request.struct_bytes = sizeof request;
    request.sampling.struct_bytes = sizeof request.sampling;
    request.samples = 1 + (int32_t)random_below(self, 3);
    if (request.samples > free_streams) request.samples = free_streams;
    request.prompt_ids = prompt;
    request.prompt_id_count = 1 + random_below(self, MAX_PROMPT);
    for (int64_t i = 0; i < request.prompt_id_count; ++i) {
        /* Repetitive, so that prompt lookup drafts something. */
        prompt[i] =
            i >= 8 ? prompt[i - 8] : (int32_t)random_below(self, (uint32_t)self->vocabulary);
    }
    request.max_tokens = 1 + (int32_t)random_below(self, 40);
    request.draft_shape = (int32_t)random_below(self, 3);
    request.draft_tokens = 1 + (int32_t)random_below(self, 8);
    if (random_below(self, 2) == 0) request.sampling.temperature = 0.8f;
    request.sampling.seed = random_below(self, 1000);
    if (random_below(self, 4) == 0) request.sampling.repetition_penalty = 1.2f;
    if (random_below(self, 4) == 0) request.logprobs = 1, request.top_logprobs = 3;
    if (random_below(self, 4) == 0) request.prompt_logprobs = 1;
    if (random_below(self, 8) == 0) {
        request.logit_mask = mask;
        request.logit_mask_user = &mask_calls;
        request.logit_mask_release = release;
        atomic_fetch_add(&masks_given, 1);
    }
    kdtree_request_id ids[3];
    REQUIRE(kdtree_submit(self->engine, &request, ids, 3) == KDTREE_OK, "a good request");
    self->submitted += request.samples;
    for (int32_t i = 0, at = 0; i < request.samples; ++at) {
        if (self->open[at].id != 0) continue;
        self->open[at] = (stream){.id = ids[i++]};
    }
    /* And one that nobody can serve. */
    request.prompt_ids = NULL;
    request.logit_mask_release = NULL;
    REQUIRE(kdtree_submit(self->engine, &request, ids, 3) == KDTREE_INVALID, "no prompt");
}

/* Whether the stream has ended. */
static bool poll(worker* self, stream* one, int64_t timeout_ms) {
    kdtree_delta* delta = NULL;
    REQUIRE(kdtree_poll(self->engine, one->id, timeout_ms, &delta) == KDTREE_OK, "poll");
    one->tokens += delta->id_count;
    self->tokens += delta->id_count;
    REQUIRE(delta->stats.tokens == one->tokens, "%d tokens in the stats, %" PRId64 " polled",
            delta->stats.tokens, one->tokens);
    REQUIRE(delta->logprob_count == 0 || delta->logprob_count == delta->id_count, "logprobs");
    const int32_t reason = delta->finish_reason;
    REQUIRE(reason != KDTREE_FINISH_ERROR, "a request failed: %s", delta->error);
    kdtree_delta_free(delta);
    if (reason == KDTREE_FINISH_NONE) return false;
    if (reason == KDTREE_FINISH_ABORT) {
        REQUIRE(one->cancelled, "an end that nobody asked for");
        self->aborted += 1;
    } else {
        self->finished += 1;
    }
    REQUIRE(kdtree_poll(self->engine, one->id, 0, &delta) == KDTREE_NOT_FOUND, "a forgotten id");
    one->id = 0;
    return true;
}

static void act(worker* self) {
    stream* one = &self->open[random_below(self, OPEN)];
    int32_t free_streams = 0;
    for (int32_t i = 0; i < OPEN; ++i) free_streams += self->open[i].id == 0;
    const uint32_t choice = random_below(self, 16);
    if (choice < 6) {
        if (free_streams > 0) submit(self, free_streams);
    } else if (one->id == 0) {
        kdtree_request_id ids[4];
        int32_t count = 0;
        REQUIRE(kdtree_wait(self->engine, random_below(self, 2), ids, 4, &count) == KDTREE_OK,
                "wait");
    } else if (choice < 8) {
        REQUIRE(kdtree_cancel(self->engine, one->id) == KDTREE_OK, "cancel");
        one->cancelled = true;
    } else if (choice == 8 && self->drops) {
        REQUIRE(kdtree_drop(self->engine, one->id) == KDTREE_OK, "drop");
        self->dropped += 1;
        one->id = 0;
    } else {
        poll(self, one, random_below(self, 3));
    }
}

static void* work(void* argument) {
    worker* self = argument;
    while (now() < deadline) {
        act(self);
        if (random_below(self, 4) == 0) nap(1000); /* or the one that steps gets no core */
    }
    for (int32_t i = 0; i < OPEN; ++i) {
        if (self->open[i].id == 0) continue;
        if (random_below(self, 2) == 0) {
            REQUIRE(kdtree_cancel(self->engine, self->open[i].id) == KDTREE_OK, "last cancel");
            self->open[i].cancelled = true;
        }
    }
    for (int32_t i = 0; i < OPEN; ++i) {
        while (self->open[i].id != 0) poll(self, &self->open[i], 1000);
    }
    atomic_fetch_sub(&working, 1);
    return NULL;
}

static void step_until_done(kdtree_engine* engine) {
    while (atomic_load(&working) > 0) {
        int32_t ran = 0;
        REQUIRE(kdtree_step(engine, &ran) == KDTREE_OK, "step");
        if (!ran) nap(200);
    }
}

static void restart_until_done(kdtree_engine* engine) {
    while (atomic_load(&working) > 0) {
        REQUIRE(kdtree_start(engine) == KDTREE_OK, "start");
        REQUIRE(kdtree_step(engine, NULL) == KDTREE_BUSY, "a second stepper");
        nap(20000);
        REQUIRE(kdtree_stop(engine) == KDTREE_OK, "stop");
    }
}

static void check_books(kdtree_engine* engine, const worker* workers, double seconds) {
    int32_t ran = 1;
    while (ran) REQUIRE(kdtree_step(engine, &ran) == KDTREE_OK, "last steps");
    worker all = {0};
    for (int32_t i = 0; i < THREADS; ++i) {
        all.submitted += workers[i].submitted;
        all.tokens += workers[i].tokens;
        all.aborted += workers[i].aborted;
        all.finished += workers[i].finished;
        all.dropped += workers[i].dropped;
    }
    kdtree_engine_stats stats = {.struct_bytes = sizeof stats};
    REQUIRE(kdtree_stats(engine, &stats) == KDTREE_OK, "stats");
    REQUIRE(stats.submitted == all.submitted, "%" PRId64, stats.submitted);
    REQUIRE(stats.unfinished == 0 && stats.unpolled == 0 && stats.running == 0 && stats.failed == 0,
            "%" PRId64 " unfinished", stats.unfinished);
    /* A request that was dropped after its end counts as ended. */
    REQUIRE(stats.finished + stats.aborted + stats.dropped == all.submitted, "ends");
    REQUIRE(stats.finished >= all.finished && stats.aborted >= all.aborted &&
                stats.dropped <= all.dropped,
            "kinds of ends");
    REQUIRE(stats.tokens >= all.tokens, "%" PRId64 " tokens", stats.tokens);
    REQUIRE(all.dropped > 0 || stats.tokens == all.tokens, "%" PRId64 " tokens polled of %" PRId64,
            all.tokens, stats.tokens);
    REQUIRE(stats.slots_used == 0 && stats.slots_free + stats.slots_cached == stats.slots_total,
            "%d slots used", stats.slots_used);
    printf("%.1f s: %" PRId64 " requests (%" PRId64 " finished, %" PRId64 " aborted, %" PRId64
           " dropped), %" PRId64 " tokens, %" PRId64 " rounds, %d mask calls\n",
           seconds, stats.submitted, stats.finished, stats.aborted, stats.dropped, stats.tokens,
           stats.rounds, atomic_load(&mask_calls));
    REQUIRE(stats.finished > 0 && stats.aborted > 0 && stats.rounds > 0, "too little happened");
}

int main(int argc, char** argv) {
    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: stress MODEL.gguf SECONDS caller|background [SEED]\n");
        return 2;
    }
    const double seconds = atof(argv[2]);
    const bool background = strcmp(argv[3], "background") == 0;
    const uint64_t seed = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
    printf("seed %" PRIu64 "\n", seed);

    kdtree_options options = {0};
    options.struct_bytes = sizeof options;
    options.model = argv[1];
    options.threads = 2;
    options.max_running_requests = 6;
    options.max_total_tokens = 300; /* too few for six: some are retracted */
    options.max_draft_tokens = 8;
    kdtree_engine* engine = NULL;
    REQUIRE(kdtree_engine_create(&options, &engine) == KDTREE_OK, "create");
    kdtree_model_info info = {.struct_bytes = sizeof info};
    REQUIRE(kdtree_engine_info(engine, &info) == KDTREE_OK, "info");

    static worker workers[THREADS];
    pthread_t threads[THREADS];
    const double start = now();
    deadline = start + seconds;
    atomic_store(&working, THREADS);
    for (int32_t i = 0; i < THREADS; ++i) {
        workers[i].engine = engine;
        workers[i].random = (seed * THREADS + (uint64_t)i + 1) * UINT64_C(0x9E3779B97F4A7C15);
        workers[i].vocabulary = info.vocabulary;
        workers[i].drops = background;
        REQUIRE(pthread_create(&threads[i], NULL, work, &workers[i]) == 0, "a thread");
    }
    if (background) {
        restart_until_done(engine);
    } else {
        step_until_done(engine);
    }
    for (int32_t i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
    check_books(engine, workers, now() - start);
    kdtree_engine_free(engine);
    REQUIRE(atomic_load(&masks_released) == atomic_load(&masks_given),
            "%d masks given, %d released", atomic_load(&masks_given), atomic_load(&masks_released));
    return 0;
}
