/* SPDX-License-Identifier: Apache-2.0 */
/* gateway: the worker loops and the requests on them. A worker owns its listener, its connections to agents
 * and its requests; what it shares with others is in gw_shared, and all of that is atomic or constant. */
#pragma once
#include <stdatomic.h>

#include "base/core/arena.h"
#include "base/digest/digest.h"
#include "io/grpc/grpc.h"
#include "io/http/http.h"
#include "io/loop/loop.h"
#include "io/redis/redis.h"
#include "policy/admission/admission.h"
#include "policy/breaker/budget.h"
#include "policy/breaker/outlier.h"
#include "policy/chooser/chooser.h"
#include "policy/cluster/view.h"
#include "policy/engine/usage.h"
#include "policy/explain/explain.h"
#include "policy/limit/limit.h"
#include "policy/prefix/prefix.h"
#include "policy/routing/prompttail.h"
#include "router/metrics.h"
#include "router/rules/rules.h"

#define GW_MAX_ATTEMPTS 16 /* of keys.def */

/* ---- what workers share ---- */
struct gw_shared {
	struct telemetry *telemetry;  /* the program's; borrowed */
	struct chooser_shared choice; /* its index is written by the control loop */
	struct prompttail_table *tails;
	struct outlier_tally *tallies; /* ROUTE_MAX_NODES */
	struct limit_table *limits;    /* buckets of all workers */
	struct digest limit_seed;      /* random: names of buckets are hashed with it */
	_Atomic uint32_t stores_away;  /* workers whose Redis is */
	struct tls_ctx *agent_tls;     /* NULL: agents are reached in clear */
	uint64_t started_unix;
	uint64_t instance;              /* random, not 0: this run of this router, for agents' shares */
	struct gw_admission *admission; /* where requests wait for room; NULL: none waits */
	_Atomic uint64_t body_bytes;    /* of request bodies in memory */
	_Atomic uint64_t resume_bytes;  /* kept for requests whose answers may have to be gone on with */
	_Atomic bool draining;
};

/* ---- a worker ---- */
/* Its connections to one agent: two, so that one stalled TCP stream does not hold everybody. */
struct gw_link {
	uint32_t tag;
	uint16_t slot;
	char *address;
	struct grpc_channel *channel;
	uint32_t requests;                      /* that use it */
	uint64_t node_id_hash;                  /* of the node whose cells these are; 0: none yet */
	struct metric_cell *predicted, *actual; /* cached tokens */
	bool retired; /* not in worker->links any more; goes with its last request */
	struct cgn_grave grave;
};

struct gw_resume;
struct gw_series;        /* metric cells of one model */
struct gw_limits;        /* limit.c: what a request has reserved */
struct gw_store;         /* limit_store.c: where routers share limits */
struct gw_tokens_worker; /* tokens.c: caches and what was seen of models */

struct gw_worker {
	uint32_t tag;
	unsigned index;
	struct gw_shared *shared;
	struct cgn_loop *loop;
	struct http_server *server;
	struct cluster_view *view;
	struct gw_rules *rules;
	struct chooser *chooser;
	uint32_t asked; /* counts requests sent: engines are asked for tokens in turn */
	struct gw_link *links[ROUTE_MAX_NODES];
	uint64_t ids; /* state of the generator of request ids, and of jitter */
	struct retry_budget budget;
	struct gw_series *series;
	size_t n_series;
	struct gw_tokens_worker *tokens;
	struct explain_ring *explain; /* NULL: router.explain_size is 0 */
	uint64_t explained;           /* requests that were numbered for it */
	struct gw_shadow *shadows;    /* ROUTE_POLICIES */
	double shadow_due;
	struct gw_store *store; /* NULL: none */
	struct metric_cell *pick_seconds, *prompt_tokens, *completion_tokens;
	struct cgn_timer count_timer;
	cgn_nsec counted_at, away_until; /* that timer ran last; it last ran late. 0: never */
	_Atomic uint32_t connections;    /* for the control loop */
	void (*on_idle)(void *arg);      /* drained; called on the worker's loop */
	void *idle_arg;
	struct cgn_post drain_post, stop_post;
};

/* Where limits are kept for several routers. */
struct gw_store_cfg {
	bool set; /* false: each for itself */
	struct redis_url url;
	struct tls_ctx *tls; /* owned */
	char prefix[100];    /* of its keys */
	cgn_nsec timeout;
};
/* reads the password's file */
CGN_RC gw_store_cfg(const struct config *cfg, struct gw_store_cfg *out, struct cgn_err *err);
void gw_store_cfg_fini(struct gw_store_cfg *c);

struct gw_worker_cfg {
	const struct gw_store_cfg *store; /* NULL: none */
	unsigned index;
	struct gw_shared *shared;
	struct http_server_cfg http;
	size_t prompt_cache; /* bytes */
	size_t explain;      /* bytes; 0: no record */
};
/* Listens, but runs only with gw_worker_start. Takes references of |view| and |rules|. */
CGN_RC gw_worker_new(const struct gw_worker_cfg *cfg, struct cluster_view *view, struct gw_rules *rules,
	struct gw_worker **out, struct cgn_err *err);
CGN_RC gw_worker_start(struct gw_worker *w, struct cgn_err *err);
/* Any thread: what the worker goes by from now on. References are taken. NULL: no change. Out of memory, the
 * old ones stay. */
void gw_worker_tell(struct gw_worker *w, struct cluster_view *view, struct gw_rules *rules);
/* Any thread: stop listening; |on_idle|, on the worker's loop, when no connection is left. */
void gw_worker_drain(struct gw_worker *w, void (*on_idle)(void *arg), void *arg);
/* Cut what is left, end the thread. From the thread that made it. */
void gw_worker_free(struct gw_worker **take);

/* Did this worker itself stop, or lack the CPU, within the last second? Then what it has not heard says
 * nothing of others. */
bool gw_worker_was_away(const struct gw_worker *w);

/* The link to |node|, made when first used. */
CGN_RC gw_link_get(struct gw_worker *w, const struct view_node *node, struct gw_link **out,
	struct cgn_err *err);
void gw_link_release(struct gw_worker *w, struct gw_link **take);

/* ---- a request ---- */
enum gw_state {
#define STATE(id, handler, exits, why) GW_##id,
#include "router/request/gw_states.def"
#undef STATE
	GW_STATE_COUNT
};

enum gw_step { STEP_AGAIN, STEP_PARK, STEP_END };
enum gw_wait {
	WAIT_NONE,
	WAIT_BODY,
	WAIT_TOKENS,
	WAIT_STORE,
	WAIT_QUEUE,
	WAIT_BACKOFF,
	WAIT_ENGINE,
	WAIT_CLIENT
};

enum gw_route_kind { GW_RELAY, GW_MODELS, GW_MODEL, GW_HEALTHZ, GW_READYZ, GW_VERSION };
#define ROUTE_OPEN    0x100U /* no key is asked for */
#define ROUTE_ANY_KEY 0U     /* a key of whatever scope */
struct gw_route_row {
	const char *method, *path;
	enum gw_route_kind kind;
	unsigned scope;
};

struct gw_admission;
struct gw_ticket;

/* Why the engine's side of a try ended, or what it is known to do. */
struct gw_try {
	struct grpc_call *call; /* NULL: none open */
	struct gw_link *link;
	uint16_t slot;
	const char *node_id;                    /* in the request's arena */
	struct metric_cell *predicted, *actual; /* of cached tokens */
	struct chooser_ticket ticket;
	enum breaker_gate gate; /* BREAKER_PROBE: it is the probe; BREAKER_SHUT: sent although */
	bool judged;            /* its node's breaker was told how it ended */
	bool head_seen, closed;
	bool events;               /* it answers with an event stream */
	struct cgn_str first_data; /* p != NULL while its first bytes are at hand; borrowed */
	struct cgn_err why;        /* once closed */
	int status;
	const struct proto_header *headers; /* of the answer, in the request's arena */
	size_t n_headers;
	/* begun: its first byte came; 0: not yet. Of a resumed answer, each try has its own */
	cgn_nsec sent_at, begun_at;
};

#define GW_REQ_TAG 0x64e40e01U
struct gw_req {
	uint32_t tag;
	enum gw_state state;
	enum gw_wait armed;
	bool waking; /* a handler runs: what happens meanwhile is seen when it returns */
	bool event;  /* something happened since the handler looked */
	struct gw_worker *w;
	struct http_exchange *x;   /* NULL once the client's side is over */
	struct cgn_err client_why; /* then */
	struct cgn_arena arena;    /* lives as long as the request */
	struct cgn_arena work;     /* chain and answer's head: dropped at the first byte */
	struct cgn_grave grave;
	struct cgn_timer timer; /* backoff, first byte, or silence of the engine */
	bool timer_fired;       /* since the last gw_park */

	/* asked */
	const struct gw_route_row *route;
	cgn_nsec started;
	struct cgn_str id, method, path, pin, session, peer, resume_asked;
	struct cgn_str set_cookie;    /* to keep the session by; empty: none */
	struct proto_header *headers; /* what the engine gets to see */
	size_t n_headers;
	struct cgn_str authorization, api_key; /* in the arena until GW_AUTH is over */
	const char *key_id;                    /* for the log; NULL: none */
	struct cgn_str tenant;                 /* of its key; "-": nobody is asked for one */
	unsigned scopes;
	struct cgn_str priority_text, deadline_text; /* as they stand in the head */
	unsigned priority;                           /* 9 goes first */
	cgn_nsec deadline; /* from arrival to the first byte; 0: the client names none */
	int64_t content_length;
	bool encoded; /* it has a content-encoding */
	bool body_done;
	struct cgn_buf body;
	uint64_t body_booked;
	enum cgn_code body_bad; /* CGN_FINE, or why it was refused while it came */

	/* waited */
	struct gw_ticket *ticket;   /* while it waits, and until what it was let in for is booked */
	cgn_nsec queued_at, queued; /* since when, and for how long */
	struct admission_forecast ttft;

	/* routed */
	struct cgn_str model; /* resolved; empty while unknown */
	bool parsed, stream;
	bool several;             /* prompts, or answers to one: the engine's counts are their sums */
	bool backed_off;          /* the pause before this try is over */
	bool limited;             /* GW_LIMIT is behind it */
	struct gw_limits *limits; /* NULL: none applies */
	struct prefix_chain chain;
	const char *tokens;             /* what its blocks are of: gw_tokens_text; NULL: it has none */
	uint32_t block_tokens;          /* tokens in one of them; 0: they are of bytes */
	uint64_t prompt_tokens;         /* as we counted them, up to ROUTE_MAX_BLOCKS blocks; 0: unknown */
	uint32_t answer_tokens;         /* the most that it asks for; 0: it does not say */
	struct gw_prompt *prompt;       /* while it is made into tokens */
	uint32_t held, blocks;          /* predicted of the last pick */
	struct gw_guess {               /* what was known of the node then, for the comparison at the end */
		double length;          /* of a chain of bytes, in blocks */
		struct prompttail tail; /* of a prompt that ended with chain[held - 1] */
		uint64_t node, last;    /* hash of its id; digest of the last full block, 0: none */
		const uint64_t *chain;  /* the held part, in the arena; NULL: not needed */
		uint32_t kv_block;      /* tokens in a block of its engine; 0: unknown */
		bool fed;               /* by an engine that holds whole blocks and nothing behind them */
	} guess;
	Cognitora__V1__Leg leg; /* of the try that is under way or comes next */
	bool legs_settled;      /* whether another node computes the prompt is decided */
	/* how, or what came of it: outcomes of cgn_disagg_total; NULL: it was no question. Static */
	const char *disagg;
	const char *prefill_node; /* that did; NULL: none */
	cgn_nsec prefill_took;
	uint16_t excluded[GW_MAX_ATTEMPTS];
	uint32_t tries;
	struct gw_try t;
	const char *last_retry;   /* reason, for the log; NULL: none */
	struct gw_resume *resume; /* NULL: what is cut stays cut */
	const char *unresumable;  /* why, though it was asked for */
	uint32_t resumes;         /* other engines went on with its answer, so often */

	/* explained */
	bool explain;            /* the client asks */
	uint64_t explain_number; /* 0: none yet */
	char *explain_room;
	struct cgn_str explain_text; /* of the last decision, when the client asks */

	/* answered */
	int status;
	bool head_sent, event_stream, paused, was_paused, ended;
	uint32_t pieces; /* relayed */
	bool counted;    /* by the budget of retries */
	char last2[2];   /* the last bytes relayed: is an event complete */
	uint64_t bytes_out;
	cgn_nsec first_byte, last_byte, took; /* took: of the last pick */
	struct usage usage;
	struct usage_tail tail;
	uint64_t cached_predicted; /* tokens, once the engine told how many there were */
	const char *outcome;       /* NULL: nothing special */
	struct metric_cell *itl;   /* of its model, once known */
};

extern const struct http_server_ops gw_http_ops;
void gw_wake(struct gw_req *r); /* something happened; the only caller of handlers */
void gw_goto(struct gw_req *r, enum gw_state next);
enum gw_step gw_auth(struct gw_req *r);
enum gw_step gw_body(struct gw_req *r);
enum gw_step gw_route(struct gw_req *r);
enum gw_step gw_limit(struct gw_req *r);
enum gw_step gw_tokens(struct gw_req *r);
enum gw_step gw_queue(struct gw_req *r);
enum gw_step gw_prefill(struct gw_req *r);
enum gw_step gw_dispatch(struct gw_req *r);
enum gw_step gw_stream(struct gw_req *r);
enum gw_step gw_answer(struct gw_req *r);
enum gw_step gw_finish(struct gw_req *r);

/* Wait for |what| and |delay| (0: no timer). */
enum gw_step gw_park(struct gw_req *r, enum gw_wait what, cgn_nsec delay);

/* disagg.c: a prompt's computing on another node than the answer's. True: the request is in GW_PREFILL
 * now. */
bool gw_disagg_begin(struct gw_req *r, const struct chooser_ask *ask);

/* route.c: could the request go to another node than those tried? */
bool gw_can_retry(struct gw_req *r);

/* queue.c: waiting for room. */
/* X-Cgn-Priority and X-Cgn-Deadline-Ms; refuses what they cannot mean */
enum gw_step gw_queue_check(struct gw_req *r);
/* is there anything to decide before the pick? One load if not */
bool gw_queue_looks(const struct gw_req *r);
bool gw_queue_must(const struct gw_req *r, enum route_verdict verdict); /* wait, that having been picked */
void gw_queue_predict(struct gw_req *r, const struct chooser_pick_result *p); /* sets r->ttft */
bool gw_queue_refuses(struct gw_req *r); /* its deadline cannot be met: it is answered then */
/* to GW_QUEUE, which comes back to GW_ROUTE */
void gw_queue_enter(struct gw_req *r, enum route_verdict verdict);
void gw_queue_end(struct gw_req *r);     /* booked, or given up; safe when it does not wait */
void gw_queue_room(struct gw_worker *w); /* a request has ended */
void gw_admission_unref(struct gw_admission **take);

/* tokens.c: from a body to the chain of digests of its prompt. */
enum gw_tokens_mode { GW_BYTES, GW_ENGINE, GW_FILE, GW_TOKENS_MODES };
const char *gw_tokens_text(enum gw_tokens_mode mode);
/* What the model's blocks are of. Either may be NULL. */
enum gw_tokens_mode gw_tokens_mode_of(const struct gw_model *row, const struct view_model *m);
CGN_RC gw_tokens_open(struct gw_worker *w, size_t cache_bytes, struct cgn_err *err);
void gw_tokens_close(struct gw_worker *w);
/* Set r->chain and all that goes with it, or go to GW_TOKENS, which comes back to GW_ROUTE once it is set.
 * |body|: of r->body. */
void gw_tokens_start(struct gw_req *r, struct json_val body, const struct gw_model *row);
void gw_tokens_end(struct gw_req *r); /* cancels what is under way; safe when nothing is */

/* limit_store.c */
CGN_RC gw_store_open(struct gw_worker *w, const struct gw_store_cfg *cfg, struct cgn_err *err);
void gw_store_close(struct gw_worker *w);

/* limit.c: rates. */
#define GW_LIMIT_FIELDS 7
/* what is told of them, in the request's arena */
size_t gw_limit_fields(struct gw_req *r, struct http_field *f);
void gw_limit_relayed(struct gw_req *r, struct cgn_str data); /* went to the client */
/* it is over; its usage is known if it ever will be */
void gw_limit_settle(struct gw_req *r);

/* try.c: one try on one node. */
/* A failure to start is a failed try: t.closed and t.why. |ticket| is what was booked for it, |gate| what
 * gw_breaker_claim said. */
void gw_try_start(struct gw_req *r, const struct view_node *node, const struct chooser_ticket *ticket,
	enum breaker_gate gate);
/* of one without an answer; BREAKER_FAILURES: the request is at fault */
enum breaker_failure gw_try_failure(const struct gw_try *t);
/* of an answer; BREAKER_FAILURES: nothing bad is said of the node */
enum breaker_failure gw_status_failure(int status);
void gw_unlearn(struct gw_req *r); /* a node that failed must not become the favourite of what it failed at */
void gw_try_end(struct gw_req *r); /* cancels what is open, gives the booking back; safe when none is open */
/* breaker.c: what a try says of its node. The first verdict on a try counts, the others do nothing. */
double gw_random(struct gw_worker *w); /* 0 to 1 */
/* Before a request is sent there. BREAKER_SHUT: it is open, or another request has just become its probe. */
enum breaker_gate gw_breaker_claim(struct gw_worker *w, const struct view_node *node);
void gw_judge_begun(struct gw_req *r); /* its first byte came; no verdict yet, but a probe has succeeded */
void gw_judge_ok(struct gw_req *r);
void gw_judge_bad(struct gw_req *r, enum breaker_failure how);
void gw_judge_stalled(struct gw_req *r);                      /* by its own agent's word */
void gw_judge_left(struct gw_req *r);                         /* neither: its client went */
bool gw_node_stalled(const struct gw_req *r, cgn_nsec since); /* it was declared so after |since| */
/* Has this stream, of which nothing came since r->last_byte, waited too long? Then its node may have been
 * declared stalled. */
bool gw_stream_stalled(struct gw_req *r, cgn_nsec now);
cgn_nsec gw_look_again(const struct gw_req *r); /* when to ask that the next time */
/* Any thread; metrics and log lines go with it. */
struct breaker_change gw_breaker_step(struct telemetry *t, struct node_stats *cell,
	const struct breaker_rules *rules, const char *node, const struct breaker_input *in);
void gw_breaker_show(struct telemetry *t, const char *node, uint64_t word, cgn_nsec now);

/* stream.c: the engine's head, its bytes, and its end to the client. */
void gw_send_head(struct gw_req *r);
void gw_relay(struct gw_req *r, struct cgn_str data);

/* session.c: r->session, of the client's head. False: out of memory. */
bool gw_session_take(struct gw_req *r, const struct http_head *h);
#define GW_SESSION_FIELDS 1 /* at most, of an answer's head */
size_t gw_session_fields(const struct gw_req *r, struct http_field *out);
/* The answer has begun and can't be gone on with: an error event, or a cut body. Leaves the request in
 * GW_ANSWER. */
enum gw_step gw_cut(struct gw_req *r, const struct cgn_err *why);
void gw_relay_bytes(struct gw_req *r, struct cgn_str data);

/* resume.c: another engine goes on with an answer. */
/* Is that asked for, and can it be? False: refused. |body|: of r->body. */
bool gw_resume_open(struct gw_req *r, struct json_val body);
void gw_resume_drop(struct gw_req *r);
/* The answer begins: keep what it takes, instead of dropping it. */
void gw_resume_keep(struct gw_req *r);
void gw_resume_relay(struct gw_req *r, struct cgn_str data);
/* The engine ended in good order. */
void gw_resume_flush(struct gw_req *r);
/* It died: true when another one shall go on (then it is in GW_ROUTE), or nothing is missing (GW_ANSWER). */
bool gw_resume_try(struct gw_req *r);
/* Slots that can't go on with it, those that were tried among them; |*n| as it is now. */
const uint16_t *gw_resume_excluded(struct gw_req *r, size_t *n);
/* Before it is sent to |node|: how that one continues, and its body. False: no memory. */
bool gw_resume_send(struct gw_req *r, const struct view_node *node);
/* Its first bytes are there. */
void gw_resume_begin(struct gw_req *r);
void gw_resume_failed(const struct gw_req *r,
	const char *code); /* nobody goes on with it: why, as a refusal would say */

/* answer.c: our own answers. All leave the request in GW_ANSWER. */
struct gw_refusal {
	int status;
	const char *type, *code, *param; /* param may be NULL */
	const char *reason;              /* label of cgn_rejected_total; NULL: not counted */
	const char *allow;               /* with 405 */
	unsigned retry_after;            /* seconds; 0: no such field */
};
enum gw_step gw_refuse(struct gw_req *r, const struct gw_refusal *how, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
enum gw_step gw_local(struct gw_req *r); /* routes that no engine is asked for */
void gw_error_json(struct cgn_buf *out, const struct gw_refusal *how, const char *message);
void gw_body_drop(struct gw_req *r); /* the body's memory and its share of the budget */

/* explain.c */
CGN_RC gw_explain_open(struct gw_worker *w, size_t bytes, struct cgn_err *err);
void gw_explain_close(struct gw_worker *w);
/* What was just picked, or that nobody was. Before the next pick. */
void gw_explain_pick(struct gw_req *r, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	cgn_nsec took);
void gw_explain_end(struct gw_req *r, int status, const char *outcome, cgn_nsec now);

/* account.c */
void gw_account_open(struct gw_worker *w);
void gw_account_close(struct gw_worker *w);
void gw_account(struct gw_req *r);
void gw_count_rejected(const struct gw_req *r, const char *reason);
void gw_count_retry(const struct gw_req *r, const char *reason);
/* tokens of an answer, on the average; 0: unknown */
uint32_t gw_series_answer(struct gw_worker *w, struct cgn_str model);
void gw_series_itl(struct gw_req *r, cgn_nsec gap); /* between two pieces of a streamed answer */
