/* kdtree/kdtree.h: the engine as a library. C ABI of libkdtree.so.
 *
 * An engine is loaded once and serves any number of requests:
 *   1. kdtree_engine_create() with the model;
 *   2. kdtree_submit() a prompt, text or ids; n samples of it are n requests;
 *   3. somebody steps: the caller in a loop of kdtree_step(), or a thread of the library's own
 *      after kdtree_start();
 *   4. kdtree_poll() what is new of a request until its delta carries a finish reason;
 *      kdtree_wait() says which requests have news;
 *   5. kdtree_engine_free().
 *
 * Threads: every function may be called from any thread at any time, and none but kdtree_step() and
 * kdtree_stop() waits for a round of the model (kdtree_poll() and kdtree_wait() wait as long as
 * their timeout says). One thread steps: a second one in kdtree_step() gets KDTREE_BUSY. Before
 * kdtree_engine_free() is called, all other calls on the engine must have returned; those that
 * still wait in kdtree_poll() or kdtree_wait() are woken and return KDTREE_CLOSED, but none may be
 * entered any more.
 *
 * Errors: functions return a kdtree_status; kdtree_last_error() says what was wrong in one line,
 * with the offending value, for the calling thread. A call that failed changed nothing. No C++
 * exception leaves the library.
 *
 * Structs: set struct_bytes = sizeof(the struct) and zero the rest first; zero means the default
 * everywhere. A library built from another version of a struct refuses it.
 *
 * Memory: results are objects that the caller owns and frees with the matching _free function; what
 * they point to lives as long as they do, and longer than the engine. Arguments are copied.
 * Texts are UTF-8; a result's text ends with a zero byte that its byte count leaves out.
 */
#ifndef KDTREE_KDTREE_H
#define KDTREE_KDTREE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KDTREE_API __attribute__((visibility("default")))
#else
#define KDTREE_API
#endif

#define KDTREE_ABI 1

typedef enum kdtree_status {
    KDTREE_OK = 0,
    KDTREE_INVALID = 1,          /* an argument, a setting or a request that cannot be served */
    KDTREE_NOT_FOUND = 2,        /* no such file, model or request */
    KDTREE_IO = 3,               /* the operating system refused a read or write */
    KDTREE_CORRUPT = 4,          /* a file that contradicts its own format */
    KDTREE_UNSUPPORTED = 5,      /* valid, but this build does not implement it */
    KDTREE_OUT_OF_RESOURCES = 6, /* memory, disk or threads that are not there */
    KDTREE_BUSY = 7,             /* another thread steps */
    KDTREE_CLOSED = 8,           /* the engine is being freed */
    KDTREE_INTERNAL = 9          /* a fault of the library */
} kdtree_status;

/* The message of this thread's last failed call; "" if none failed. Valid until the next call. */
KDTREE_API const char* kdtree_last_error(void);
/* KDTREE_ABI of the library that was loaded. */
KDTREE_API int32_t kdtree_abi(void);
/* "0.1.0 (commit)". */
KDTREE_API const char* kdtree_version(void);

/* ---- the engine ----------------------------------------------------------------------------- */

typedef struct kdtree_engine kdtree_engine;
typedef uint64_t kdtree_request_id; /* never 0 */

typedef enum kdtree_drafter {
    KDTREE_DRAFTER_DEFAULT = 0, /* ngram */
    KDTREE_DRAFTER_NONE = 1,
    KDTREE_DRAFTER_NGRAM = 2,  /* prompt lookup */
    KDTREE_DRAFTER_ORACLE = 3, /* knows the answer (known_continuation); for studies */
    KDTREE_DRAFTER_DFLASH = 4  /* a block-diffusion drafter trained for the model */
} kdtree_drafter;

typedef struct kdtree_options {
    uint32_t struct_bytes;
    int32_t drafter;              /* kdtree_drafter */
    const char* model;            /* a .gguf file or a known name; NULL: smollm2 */
    const char* draft_model_path; /* oracle: its profile; dflash: its folder; else NULL */
    int32_t context_length;       /* tokens of one request, prompt and answer; 0: the model's */
    int32_t threads;              /* 0: what affinity and cgroup allow */
    int32_t max_running_requests; /* in one round; others wait. 0: 1 */
    int32_t max_total_tokens;     /* slots of the KV pool; 0: context_length for every request */
    int32_t chunked_prefill_size; /* prompt rows in one round, all requests together; 0: 128 */
    int32_t max_draft_tokens;     /* most verified rows of a tree, the root included; 0: 32 */
    int32_t reference_kernels;    /* 1: every op by its plain reference; slow */
    int32_t page_size;            /* tokens of a page of the KV pool: 1, 16, 32 or 64; 0: 1 */
    int32_t disable_radix_cache;  /* 1: every prompt is computed from its first token on */
    int32_t kv_extent;            /* slots of a request are taken by so many; 1: as needed; 0: 64 */
    int32_t kv_headroom;   /* most slots taken behind a prompt for its answer; 0: 1024; 1: one */
    int32_t kv_relocate;   /* rows moved between two rounds at most; 0: none */
    double kv_evict_batch; /* share of the cache evicted at once; 0: 0.1; 1e-9: what is short */
} kdtree_options;

/* Loads model and drafter. *engine is NULL after a failure. options NULL: all defaults. */
KDTREE_API kdtree_status kdtree_engine_create(const kdtree_options* options,
                                              kdtree_engine** engine);
/* Ends the background thread and all requests. NULL is ignored. Never from a logit mask. */
KDTREE_API void kdtree_engine_free(kdtree_engine* engine);

typedef struct kdtree_model_info {
    uint32_t struct_bytes;
    int32_t vocabulary;
    int32_t context_length;       /* of this engine */
    int32_t max_running_requests; /* these four with all defaults resolved */
    int32_t max_total_tokens;
    int32_t max_draft_tokens; /* 1: there is no drafter */
    int32_t threads;
    int32_t bos_token; /* -1: none */
    int32_t eos_token; /* -1: none */
    int32_t has_chat_template;
} kdtree_model_info;

KDTREE_API kdtree_status kdtree_engine_info(const kdtree_engine* engine, kdtree_model_info* info);

/* ---- text and tokens ------------------------------------------------------------------------ */

/* Ids, text or both, as the call says; what is absent has count 0. Never NULL pointers. */
typedef struct kdtree_result {
    int64_t id_count;
    const int32_t* ids;
    int64_t text_bytes;
    const char* text;
} kdtree_result;

KDTREE_API void kdtree_result_free(kdtree_result* result);

/* Text to ids. text_bytes -1: up to the zero byte. parse_special: control tokens written in the
 * text ("<|im_end|>") become their ids. No BOS is added. */
KDTREE_API kdtree_status kdtree_tokenize(const kdtree_engine* engine, const char* text,
                                         int64_t text_bytes, int32_t parse_special,
                                         kdtree_result** result);
/* The raw bytes of ids; they may end inside a character. with_special: control tokens as their
 * names, else left out. */
KDTREE_API kdtree_status kdtree_detokenize(const kdtree_engine* engine, const int32_t* ids,
                                           int64_t id_count, int32_t with_special,
                                           kdtree_result** result);
/* The model's chat template over JSON text: an array of messages [{"role", "content"}, ...], or an
 * object with "messages" and any other variable of the template ("tools", ...). Ids and text.
 * add_generation_prompt: the answer's header is added (an object's own value wins). json_bytes -1:
 * up to the zero byte. */
KDTREE_API kdtree_status kdtree_apply_chat_template(const kdtree_engine* engine, const char* json,
                                                    int64_t json_bytes,
                                                    int32_t add_generation_prompt,
                                                    kdtree_result** result);

/* ---- requests ------------------------------------------------------------------------------- */

/* How tokens are drawn; all zero: greedy. Penalties are evaluated along each node's own path, so
 * trees change no text. */
typedef struct kdtree_sampling {
    uint32_t struct_bytes;
    float temperature;        /* 0: greedy */
    int32_t top_k;            /* 0: all */
    float top_p;              /* (0, 1]; 0: 1 */
    float min_p;              /* [0, 1] */
    float repetition_penalty; /* 0: 1, none */
    float presence_penalty;
    float frequency_penalty;
    uint64_t seed; /* sample i of a request draws with seed + i */
} kdtree_sampling;

typedef struct kdtree_logit_bias {
    int32_t token;
    float bias; /* added to its logit; -infinity forbids it */
} kdtree_logit_bias;

/* Which tokens may follow `answer`, the emitted tokens on the path of one tree node. Bit t % 32 of
 * allowed[t / 32] stands for token t; all are set at first. Must be a function of `answer` alone.
 * Called by the thread that steps, which holds no lock: the callback may submit, cancel and poll,
 * but neither step, stop nor free. Returns 0; anything else ends the request with
 * KDTREE_FINISH_ERROR. */
typedef int32_t (*kdtree_logit_mask)(void* user, const int32_t* answer, int64_t answer_tokens,
                                     uint32_t* allowed, int64_t allowed_words);

typedef enum kdtree_draft_shape {
    KDTREE_DRAFT_TREE = 0,
    KDTREE_DRAFT_CHAIN = 1,
    KDTREE_DRAFT_PLAIN = 2 /* no speculation */
} kdtree_draft_shape;

typedef struct kdtree_request {
    uint32_t struct_bytes;
    int32_t samples;           /* requests made of this prompt; 0: 1 */
    const int32_t* prompt_ids; /* [prompt_id_count]; NULL: prompt_text is tokenised */
    int64_t prompt_id_count;
    const char* prompt_text;   /* NULL: prompt_ids */
    int64_t prompt_text_bytes; /* -1: up to the zero byte; 0 is an empty text here */
    int32_t parse_special;     /* of prompt_text, as in kdtree_tokenize() */
    int32_t max_tokens;        /* 0: as many as the context holds */
    int32_t min_tokens;        /* no stop token before so many tokens of the answer */
    int32_t ignore_eos;        /* 1: stop tokens are tokens like any other */
    kdtree_sampling sampling;
    const char* const* stop; /* [stop_count] strings that end the answer before them */
    int32_t stop_count;
    int32_t logit_bias_count;
    const kdtree_logit_bias* logit_bias; /* [logit_bias_count] distinct tokens */
    kdtree_logit_mask logit_mask;        /* NULL: every token is allowed */
    void* logit_mask_user;
    /* Called once when no sample can call logit_mask any more, if kdtree_submit() succeeded; by any
     * thread, also that of kdtree_engine_free(). NULL: nobody needs to know. */
    void (*logit_mask_release)(void* user);
    int32_t logprobs;                  /* 1: of emitted tokens */
    int32_t top_logprobs;              /* so many likeliest tokens with them, 0..128 */
    int32_t prompt_logprobs;           /* 1: of the prompt's tokens, from the second on */
    int32_t top_prompt_logprobs;       /* 0..128 */
    int32_t prompt_only;               /* 1: ends with the prompt, nothing is generated */
    int32_t draft_shape;               /* kdtree_draft_shape */
    int32_t draft_tokens;              /* verified rows of a tree; 0: the measured cost picks */
    const int32_t* known_continuation; /* [known_continuation_count] for the oracle drafter */
    int64_t known_continuation_count;
} kdtree_request;

/* Queues the request and fills ids[samples]. All samples are queued or none. */
KDTREE_API kdtree_status kdtree_submit(kdtree_engine* engine, const kdtree_request* request,
                                       kdtree_request_id* ids, int32_t id_capacity);
/* Asks for the end of a request: before the next round it finishes with KDTREE_FINISH_ABORT, which
 * is polled as usual. A finished request stays as it is; an unknown one is KDTREE_NOT_FOUND. */
KDTREE_API kdtree_status kdtree_cancel(kdtree_engine* engine, kdtree_request_id id);
/* Cancels a request and forgets it at once: whoever waits in kdtree_poll() for it gets
 * KDTREE_NOT_FOUND. Its logit mask may still be called until logit_mask_release was. */
KDTREE_API kdtree_status kdtree_drop(kdtree_engine* engine, kdtree_request_id id);

/* ---- what becomes of them ------------------------------------------------------------------- */

typedef enum kdtree_finish_reason {
    KDTREE_FINISH_NONE = 0,   /* it goes on */
    KDTREE_FINISH_STOP = 1,   /* a stop token or string */
    KDTREE_FINISH_LENGTH = 2, /* max_tokens, a full context, or the end of a prompt_only request */
    KDTREE_FINISH_ABORT = 3,  /* cancelled */
    KDTREE_FINISH_ERROR = 4   /* see the delta's error */
} kdtree_finish_reason;

/* Natural logarithms of the target's own distribution: before temperature, penalties, bias, mask.
 */
typedef struct kdtree_token_logprob {
    int32_t token;
    float logprob;
} kdtree_token_logprob;

typedef struct kdtree_position_logprobs {
    float logprob; /* of the token that stands there */
    int32_t top_count;
    const kdtree_token_logprob* top; /* [top_count] (logprob descending, id ascending) */
} kdtree_position_logprobs;

/* What a request did so far. Seconds are those of the rounds it took part in. */
typedef struct kdtree_request_stats {
    int32_t prompt_tokens;
    int32_t tokens; /* emitted */
    int32_t rounds; /* decoding rounds; tokens / rounds is the acceptance length */
    int32_t nodes;  /* verified rows, roots included */
    int32_t retracted;
    int32_t reused_tokens; /* of the prompt, found in the prefix cache */
    double prefill_s;
    double decode_s;
} kdtree_request_stats;

typedef struct kdtree_delta {
    int32_t finish_reason; /* kdtree_finish_reason */
    int32_t reserved;      /* 0 */
    int64_t id_count;      /* emitted since the last poll, a stop token included */
    const int32_t* ids;
    int64_t text_bytes; /* whole characters, ended before any stop string */
    const char* text;
    int64_t logprob_count; /* id_count, or 0: not asked for */
    const kdtree_position_logprobs* logprobs;
    int64_t prompt_logprob_count; /* of prompt tokens 1, 2, ...; each comes once */
    const kdtree_position_logprobs* prompt_logprobs;
    const char* error; /* one line with KDTREE_FINISH_ERROR, else "" */
    kdtree_request_stats stats;
} kdtree_delta;

KDTREE_API void kdtree_delta_free(kdtree_delta* delta);

/* What is new of a request. timeout_ms: waits so long for news; 0: not at all; -1: until there are
 * some. Without news the delta is empty and its stats are those of the last news. After a delta
 * with a finish reason the id is forgotten; an unknown id is KDTREE_NOT_FOUND. */
KDTREE_API kdtree_status kdtree_poll(kdtree_engine* engine, kdtree_request_id id,
                                     int64_t timeout_ms, kdtree_delta** delta);
/* Requests with news that nobody polled yet, at most id_capacity of them, those that have them
 * longest first; *id_count is 0 after a timeout (as in kdtree_poll()). Says so again until they are
 * polled. */
KDTREE_API kdtree_status kdtree_wait(kdtree_engine* engine, int64_t timeout_ms,
                                     kdtree_request_id* ids, int32_t id_capacity,
                                     int32_t* id_count);

/* ---- stepping ------------------------------------------------------------------------------- */

/* Runs one round. *ran (may be NULL): 0 if there was nothing to do. KDTREE_BUSY if another thread
 * steps, the background thread for example. */
KDTREE_API kdtree_status kdtree_step(kdtree_engine* engine, int32_t* ran);
/* Steps on a thread of the library's own, which sleeps while there is nothing to do. KDTREE_BUSY if
 * somebody steps already. */
KDTREE_API kdtree_status kdtree_start(kdtree_engine* engine);
/* Ends that thread after the round it is in; requests stay. OK if there is none. */
KDTREE_API kdtree_status kdtree_stop(kdtree_engine* engine);

typedef struct kdtree_round_stats {
    int32_t requests; /* that took part */
    int32_t decoding; /* of them with a tree */
    int32_t prefill_rows;
    int32_t nodes;       /* verified rows of all trees, roots included */
    int32_t emitted;     /* tokens accepted, those after a stop included */
    int32_t reused_rows; /* prompt rows found in the prefix cache */
    double draft_s, tree_s, verify_s, accept_s, commit_s, total_s;
    double predicted_verify_s; /* by the cost table; 0: none was used */
} kdtree_round_stats;

/* Totals since the engine was loaded. submitted = unfinished + finished + aborted + failed +
 * dropped. slots_free + slots_used + slots_cached = slots_total, and slots_used is 0 after a step
 * that left nothing to run. */
typedef struct kdtree_engine_stats {
    uint32_t struct_bytes;
    int32_t background;  /* 1: the background thread steps */
    int32_t running;     /* after the last step; a dropped request runs until the next one */
    int32_t slots_total; /* of the KV pool */
    int32_t slots_used;  /* by requests alone, after the last step, like the next two */
    int32_t slots_free;
    int32_t slots_cached; /* hold prefixes that later requests may begin with; room for others */
    int32_t reserved;
    int64_t submitted;
    int64_t unfinished;
    int64_t finished; /* by stop or length */
    int64_t aborted;
    int64_t failed;
    int64_t dropped;
    int64_t unpolled; /* ended requests whose last delta was not polled yet */
    int64_t tokens;   /* emitted; those of a dropped request up to then */
    int64_t rounds;
    double busy_s; /* in rounds */
    kdtree_round_stats last_round;
} kdtree_engine_stats;

KDTREE_API kdtree_status kdtree_stats(const kdtree_engine* engine, kdtree_engine_stats* stats);

/* ---- trees over arrays ---------------------------------------------------------------------- */

/* What a drafter proposes: for each depth up to `states` states, a token and its log-probability.
 * An edge joins states of neighbouring depths; without edges any state may follow any of the depth
 * before. Row d of each array is tree depth d + 1. */
typedef struct kdtree_lattice {
    uint32_t struct_bytes;
    int32_t depths;             /* 0..64 */
    int32_t states;             /* 1..64, length of a row */
    const int32_t* state_count; /* [depths] 0..states */
    const int32_t* token;       /* [depths, states] */
    const float* log_prob;      /* [depths, states]; at depth 0 also the edge from the root */
    const float* edge;          /* [depths, states (parent), states (child)] log P(child | parent),
                                   -infinity: no edge; row 0 is not read. NULL: no edges */
} kdtree_lattice;

/* Parents before children, node 0 is the root. Nodes stand in non-increasing log_score: the first n
 * are the best tree of n nodes. */
typedef struct kdtree_tree {
    uint32_t struct_bytes;
    int32_t capacity;    /* 1.. */
    int32_t count;       /* nodes in use */
    int32_t* token;      /* [capacity] */
    int32_t* parent;     /* [capacity]; -1 for the root */
    int32_t* depth;      /* [capacity]; build: NULL if not wanted; accept: not read */
    float* log_score;    /* [capacity]; the same */
    uint64_t* ancestors; /* [capacity, 2]; the same. Bit a: node a is an ancestor or the node */
} kdtree_tree;

/* The heaviest prefixes of the lattice: at most min(max_nodes, tree->capacity, 128) nodes. Writes
 * the tree's arrays and count. */
KDTREE_API kdtree_status kdtree_build_tree(const kdtree_lattice* lattice, int32_t root_token,
                                           int32_t max_nodes, kdtree_tree* tree);

/* The accepted path and what follows each of its nodes; the last token is the bonus. */
typedef struct kdtree_accepted {
    uint32_t struct_bytes;
    int32_t capacity; /* at least the tree's deepest depth + 1 */
    int32_t count;    /* >= 1 */
    int32_t* path;    /* [capacity] nodes, the root first */
    int32_t* emitted; /* [capacity] */
} kdtree_accepted;

/* Lossless acceptance over logits [tree->count, vocabulary], rows `row_stride` floats apart.
 * draws [draw_count]: draws[d] in [0, 1) chooses what follows a node of depth d, at least the
 * deepest depth + 1; greedy sampling reads none (NULL). Penalties need the history, so they must be
 * off here: apply them to the logits. */
KDTREE_API kdtree_status kdtree_accept_tree(const kdtree_tree* tree, const float* logits,
                                            int32_t vocabulary, int64_t row_stride,
                                            const kdtree_sampling* sampling, const double* draws,
                                            int32_t draw_count, kdtree_accepted* accepted);

#ifdef __cplusplus
}
#endif
#endif
