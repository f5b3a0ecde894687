/* SPDX-License-Identifier: Apache-2.0 */
/* bench pick: measures the steps of a routing decision for a tokenized prompt: digests of its blocks, their
 * holders, the choice, the booking. Then the cost of recording the decision, of asking one shadow policy, and of
 * deciding between one node and two.
 * A mix of prompts comes at a fixed rate while another thread applies the nodes' reports on earlier ones to
 * the index. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/resource.h>

#include "base/mix/mix.h"
#include "base/samples/samples.h"
#include "bench/bench.h"
#include "bench/common/report.h"
#include "bench/part/pick_world.h"
#include "io/os/loop/loop.h"
#include "joint/ctl/line/progress.h"
#include "policy/route/explain/explain.h"
#include "policy/route/routing/document.h"

#define MAX_CASES 16
#define MAX_OPEN  8192
#define TICK      (CGN_MSEC / 2) /* Interval of decisions; all decisions due in it are made together. */
/* Number of prompts that stay in the nodes' caches before the oldest is dropped. */
#define TURN_OVER  512
#define SWEEP      1024
#define RING_BYTES ((size_t)8 << 20) /* Default size of the ring of one of two workers. */

enum phase {
	DIGEST,
	MATCH,
	SCORE,
	BOOK,
	TOTAL /* Sum of the phases before. */,
	RECORD,
	SHADOW,
	SPLIT,
	PHASES
};
static const char *const phase_names[PHASES] = {"digest", "match", "score", "book", "total", "record",
	"shadow", "split"};
enum group { KNOWN, NEW, ALL, GROUPS };
static const char *const group_names[GROUPS] = {"known", "new", "all"};

struct result {
	uint64_t nodes, index_blocks;
	struct samples took[GROUPS][PHASES];
	uint64_t count[GROUPS], digests[GROUPS], held[GROUPS];
	uint64_t preempted; /* Decisions not counted, because another process had the core meanwhile. */
};

struct bench {
	uint64_t tokens, fresh, sent, rate, seed;
	uint64_t prefill; /* Percentage of prefill nodes; 0: the phase SPLIT is left out. */
	enum route_policy policy;
	size_t n_cases;
	cgn_nsec duration;
	struct result results[MAX_CASES];
};

/* The report of a node on a prompt that it received. */
struct report {
	uint16_t index_id;
	size_t n;
	uint64_t digests[];
};

struct run {
	const struct bench *b;
	struct result *result;
	struct pick_world world;
	uint64_t rng;
	struct chooser_ticket open[MAX_OPEN];
	size_t n_open;
	struct explain_ring *ring;
	struct report **reports; /* For each decision; NULL: the node publishes no events. */
	size_t n;
	atomic_size_t made;
	atomic_bool stop;
};

static void show_progress(const struct run *x, const char *what, size_t i)
{
	if (i % 256 == 0)
		ctl_progress("%" PRIu64 " nodes: %s %3.0f %%", x->result->nodes, what,
			100.0 * (double)i / (double)x->n);
}

/* ---- the other thread ---- */

static void drop_report(struct run *x, const struct report *r)
{
	static const uint8_t nowhere[TOKENS_BLOCK_MAX];
	for (size_t at = 0; at < r->n; at += sizeof nowhere)
		kvindex_set(x->world.shared.index, r->index_id, r->digests + at, nowhere,
			r->n - at < sizeof nowhere ? r->n - at : sizeof nowhere);
}

static void *apply_on(void *arg)
{
	struct run *x = arg;
	const struct timespec pause = {.tv_nsec = (long)(TICK / 4)};
	size_t done = 0;
	while (!atomic_load(&x->stop) || done < atomic_load(&x->made)) {
		if (done == atomic_load(&x->made)) {
			(void)kvindex_tick(x->world.shared.index, SWEEP);
			(void)nanosleep(&pause, NULL);
			continue;
		}
		const struct report *r = x->reports[done],
				    *old = done >= TURN_OVER ? x->reports[done - TURN_OVER] : NULL;
		if (r != NULL)
			kvindex_set(x->world.shared.index, r->index_id, r->digests, NULL, r->n);
		if (old != NULL)
			drop_report(x, old);
		done++;
	}
	return NULL;
}

/* ---- decisions ---- */

static long count_preemptions(void)
{
	struct rusage u;
	return getrusage(RUSAGE_THREAD, &u) == 0 ? u.ru_nivcsw : 0;
}

static struct chooser_ask ask_of(const struct pick_world *w)
{
	return (struct chooser_ask){.rules = &w->rules,
		.model = view_model_find(w->view, CGN_STR("m")),
		.chain = w->chain.short_digests,
		.blocks = w->chain.n,
		.block_tokens = PICK_BLOCK_TOKENS,
		.prompt_tokens = w->chain.n_tokens,
		.answer_tokens = 256,
		.pin = CHOOSER_NO_PIN,
		.now = cgn_clock_now()};
}

static void note_report(struct run *x, enum group g, const cgn_nsec at[PHASES], size_t digests, uint32_t held)
{
	struct result *r = x->result;
	for (size_t p = 0; p < TOTAL; p++)
		samples_add(&r->took[g][p], at[p + 1] - at[p]);
	samples_add(&r->took[g][TOTAL], at[TOTAL] - at[0]);
	for (size_t p = RECORD; p < PHASES; p++)
		samples_add(&r->took[g][p], at[p] - at[p - 1]);
	r->count[g]++;
	r->digests[g] += digests;
	r->held[g] += held;
}

/* Age the open requests: half of them are answered, the oldest ends. */
static void age_requests(struct run *x, size_t i)
{
	struct chooser *c = x->world.chooser;
	cgn_nsec now = cgn_clock_now();
	chooser_begun(c, &x->open[(i + x->n_open / 2) % x->n_open], now);
	chooser_release(c, &x->open[i % x->n_open], now);
	x->open[i % x->n_open] = (struct chooser_ticket){.booked = false};
}

static CGN_RC hand_over(struct run *x, size_t i, const struct chooser_ticket *t, struct cgn_err *err)
{
	const struct pick_world *w = &x->world;
	const struct cluster_node *node = w->cluster->by_slot[t->slot];
	size_t n = t->blocks - t->held;
	if (node->fed && n > 0) {
		struct report *r = malloc(sizeof *r + n * sizeof r->digests[0]);
		if (r == NULL)
			return CGN_FAIL(err, NO_MEMORY, "no memory for a node's report");
		*r = (struct report){.index_id = node->index_id, .n = n};
		memcpy(r->digests, w->chain.short_digests + t->held, n * sizeof r->digests[0]);
		x->reports[i] = r;
	}
	atomic_store(&x->made, i + 1);
	return CGN_OK;
}

/* Do the work after a decision: record the decision, and ask the policies of router.shadow. */
static void record_decision(struct run *x, const struct chooser_ask *ask, const struct chooser_pick_result *p,
	size_t i, cgn_nsec at[PHASES])
{
	struct explain_decision d = {.request = i + 1,
		.id = CGN_STR("req-0123456789abcdef01234567"),
		.model = CGN_STR("m"),
		.at_ms = i};
	struct explain_shadow s;
	size_t index;
	explain_pick(ask, p, x->world.view, &d);
	explain_ring_decide(x->ring, &d);
	at[RECORD] = cgn_clock_now();
	explain_shadow(p, x->b->policy == ROUTE_PREDICTED ? ROUTE_WEIGHTED : ROUTE_PREDICTED, x->world.view,
		&s, &index);
	at[SHADOW] = at[SPLIT] = cgn_clock_now();
}

static void split_decide(struct run *x, const struct chooser_ask *ask, cgn_nsec at[PHASES])
{
	struct chooser_split split;
	if (x->b->prefill == 0)
		return;
	chooser_split(x->world.chooser, ask, &split);
	at[SPLIT] = cgn_clock_now();
}

static CGN_RC decide_request(struct run *x, size_t i, struct cgn_err *err)
{
	struct pick_world *w = &x->world;
	struct pick_keys keys;
	cgn_nsec at[PHASES];
	bool fresh = mix_xorshift_star(&x->rng) % 100 < x->b->fresh;
	enum pick_kind kind = !fresh                  ? PICK_KNOWN
		: mix_xorshift_star(&x->rng) % 2 == 0 ? PICK_NEW
						      : PICK_STRANGE;
	uint64_t conversation = kind == PICK_KNOWN ? i : i + x->n;
	pick_world_keys(w, conversation, kind, &keys);
	pick_world_ids(w, conversation, kind);
	age_requests(x, i);
	struct chooser_ticket *t = &x->open[i % x->n_open];
	long before = count_preemptions();
	at[0] = cgn_clock_now();
	size_t digests = pick_world_digest(w, &keys);
	at[1] = cgn_clock_now();
	struct chooser_ask ask = ask_of(w);
	size_t n = chooser_match(w->chooser, &ask);
	at[2] = cgn_clock_now();
	struct chooser_pick_result p = chooser_choose(w->chooser, &ask, n);
	at[3] = cgn_clock_now();
	if (p.verdict != ROUTE_PICKED)
		return CGN_FAIL(err, INTERNAL, "no node was chosen");
	chooser_book(w->chooser, &ask, &p, t);
	at[TOTAL] = cgn_clock_now();
	record_decision(x, &ask, &p, i, at);
	split_decide(x, &ask, at);
	if (count_preemptions() == before) {
		note_report(x, fresh ? NEW : KNOWN, at, digests, t->held);
		note_report(x, ALL, at, digests, t->held);
	} else {
		x->result->preempted++;
	}
	return hand_over(x, i, t, err);
}

static CGN_RC decide_on(struct run *x, struct cgn_err *err)
{
	const struct timespec pause = {.tv_nsec = (long)TICK};
	cgn_nsec began = cgn_clock_now();
	for (size_t i = 0; i < x->n;) {
		size_t due = (size_t)((double)cgn_since(cgn_clock_now(), began) / 1e9 * (double)x->b->rate);
		for (; i < x->n && i < due; i++) {
			show_progress(x, "decisions", i);
			CGN_TRY(decide_request(x, i, err));
		}
		(void)nanosleep(&pause, NULL);
	}
	return CGN_OK;
}

/* ---- a case ---- */

static CGN_RC fill_world(struct run *x, struct cgn_err *err)
{
	for (size_t i = 0; i < x->n; i++) {
		show_progress(x, "prompts of before", i);
		CGN_TRY(pick_world_tell(&x->world, i, err));
	}
	struct kvindex_stats s;
	kvindex_stats(x->world.shared.index, &s);
	x->result->index_blocks = s.blocks;
	return CGN_OK;
}

static CGN_RC measure_case(struct run *x, struct cgn_err *err)
{
	const struct bench *b = x->b;
	const struct pick_cfg cfg = {.seed = b->seed,
		.nodes = x->result->nodes,
		.sent = x->result->nodes * b->sent / 100,
		.tokens = b->tokens / PICK_BLOCK_TOKENS * PICK_BLOCK_TOKENS,
		.policy = b->policy,
		.prefill = b->prefill};
	pthread_t writer;
	x->rng = b->seed | 1;
	x->n = (size_t)((double)b->duration / 1e9 * (double)b->rate) + 1;
	x->n_open = 4 * cfg.nodes < MAX_OPEN ? 4 * cfg.nodes : MAX_OPEN;
	x->reports = calloc(x->n, sizeof *x->reports);
	if (x->reports == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for %zu decisions", x->n);
	CGN_TRY(explain_ring_new(RING_BYTES, b->seed, &x->ring, err));
	CGN_TRY(pick_world_init(&x->world, &cfg, err));
	CGN_TRY(fill_world(x, err));
	if (pthread_create(&writer, NULL, apply_on, x) != 0)
		return CGN_FAIL(err, UNAVAILABLE, "cannot start a thread");
	cgn_rc rc = decide_on(x, err);
	atomic_store(&x->stop, true);
	(void)pthread_join(writer, NULL);
	return rc;
}

static CGN_RC run_case(const struct bench *b, struct result *r, struct cgn_err *err)
{
	struct run *x = CGN_NEW(struct run);
	x->b = b;
	x->result = r;
	cgn_rc rc = measure_case(x, err);
	pick_world_fini(&x->world);
	explain_ring_free(&x->ring);
	for (size_t i = 0; x->reports != NULL && i < x->n; i++)
		free(x->reports[i]);
	free(x->reports);
	free(x);
	return rc;
}

/* ---- report ---- */

/* Return how many phases were measured. */
static size_t phases_of(const struct bench *b)
{
	return b->prefill > 0 ? PHASES : SPLIT;
}

static void json_group(const struct bench *b, struct json_out *o, struct result *r, enum group g)
{
	json_open(o, '{');
	json_key_f64(o, "nodes", (double)r->nodes);
	json_key_z(o, "prompts", group_names[g]);
	json_key_f64(o, "decisions", (double)r->count[g]);
	json_key_f64(o, "digests_made", report_share(r->digests[g], r->count[g]));
	json_key_f64(o, "blocks_held", report_share(r->held[g], r->count[g]));
	for (size_t p = 0; p < phases_of(b); p++) {
		char name[32];
		(void)snprintf(name, sizeof name, "%s_us", phase_names[p]);
		json_key_open(o, name, '{');
		json_key_f64(o, "p50", samples_us(&r->took[g][p], 0.5));
		json_key_f64(o, "p99", samples_us(&r->took[g][p], 0.99));
		json_key_f64(o, "p999", samples_us(&r->took[g][p], 0.999));
		json_close(o, '}');
	}
	json_key_f64(o, "preempted", (double)r->preempted);
	json_key_f64(o, "index_blocks", (double)r->index_blocks);
	json_close(o, '}');
}

static CGN_RC report_json(struct bench *b, struct cgn_err *err)
{
	struct report_doc doc;
	struct json_out *o = report_begin(&doc, "pick");
	json_key_z(o, "policy", route_policy_text(b->policy));
	json_key_f64(o, "tokens", (double)b->tokens);
	json_key_f64(o, "seed", (double)b->seed);
	json_key_open(o, "results", '[');
	for (size_t i = 0; i < b->n_cases; i++)
		for (size_t g = 0; g < GROUPS; g++)
			json_group(b, o, &b->results[i], (enum group)g);
	return report_end(&doc, err);
}

static CGN_RC report_table(struct bench *b, struct cgn_err *err)
{
	static const char *const headers[PHASES] = {"DIGEST P50", "MATCH P50", "SCORE P50", "BOOK P50",
		"TOTAL P50", "RECORD P50", "SHADOW P50", "SPLIT P50"};
	struct ctl_table t = {0};
	for (size_t i = 0; i < b->n_cases * GROUPS; i++) {
		struct result *r = &b->results[i / GROUPS];
		enum group g = (enum group)(i % GROUPS);
		CTL_CELL(&t, "NODES", "%" PRIu64, r->nodes);
		CTL_CELL(&t, "PROMPTS", "%s", group_names[g]);
		CTL_CELL(&t, "DECISIONS", "%" PRIu64, r->count[g]);
		CTL_CELL(&t, "DIGESTS", "%.0f", report_share(r->digests[g], r->count[g]));
		CTL_CELL(&t, "HELD", "%.0f", report_share(r->held[g], r->count[g]));
		for (size_t p = 0; p < phases_of(b); p++) {
			report_put_time(&t, headers[p], 1, " us", samples_us(&r->took[g][p], 0.5));
			report_put_time(&t, "P99", 1, " us", samples_us(&r->took[g][p], 0.99));
		}
		report_put_time(&t, "TOTAL P99.9", 1, " us", samples_us(&r->took[g][TOTAL], 0.999));
	}
	return ctl_table_print(&t, false, err);
}

/* ---- set-up ---- */

static CGN_RC run_bench(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	CGN_TRY(route_document_policy(cgn_str_of(ctl_flag(a, "--policy")), &b->policy, err));
	uint64_t nodes[MAX_CASES];
	CGN_TRY(ctl_flag_u64s(a, "--nodes", 1, ROUTE_MAX_NODES, nodes, MAX_CASES, &b->n_cases, err));
	for (size_t i = 0; i < b->n_cases; i++)
		b->results[i].nodes = nodes[i];
	CGN_TRY(ctl_flag_u64(a, "--tokens", PICK_SYSTEM_TOKENS + 2 * PICK_TURN_TOKENS,
		(uint64_t)ROUTE_MAX_BLOCKS * PICK_BLOCK_TOKENS, &b->tokens, err));
	CGN_TRY(ctl_flag_u64(a, "--new", 0, 100, &b->fresh, err));
	CGN_TRY(ctl_flag_u64(a, "--sent", 0, 100, &b->sent, err));
	CGN_TRY(ctl_flag_u64(a, "--prefill", 0, 99, &b->prefill, err));
	CGN_TRY(ctl_flag_u64(a, "--rate", 1, 1000000, &b->rate, err));
	CGN_TRY(ctl_flag_u64(a, "--seed", 1, UINT64_MAX, &b->seed, err));
	CGN_TRY(ctl_flag_duration(a, "--duration", &b->duration, err));
	for (size_t i = 0; i < b->n_cases; i++)
		CGN_TRY(run_case(b, &b->results[i], err));
	ctl_progress_end();
	return (a->json ? report_json : report_table)(b, err);
}

CGN_RC ctl_bench_pick(const struct ctl_args *a, struct cgn_err *err)
{
	struct bench *b = CGN_NEW(struct bench);
	cgn_rc rc = run_bench(a, b, err);
	for (size_t i = 0; i < b->n_cases; i++)
		for (size_t g = 0; g < GROUPS; g++)
			for (size_t p = 0; p < PHASES; p++)
				samples_fini(&b->results[i].took[g][p]);
	free(b);
	return rc;
}
