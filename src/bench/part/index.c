/* SPDX-License-Identifier: Apache-2.0 */
/* part, the room: measures parts of the router in this process: index, decision, tokenizer. */
/* bench index: measures the router's index of KV blocks in this process, with the reports of nodes that serve
 * conversations.
 *
 * First a writer applies reports as fast as it can, from an empty index until the caches have turned over.
 * The clock stops when readers see all updates and replaced memory is reclaimed. Generating the reports is
 * not timed. Then requests arrive at a fixed rate: a reader looks up each one, as a router does before its
 * choice, while another thread applies the nodes' reports on earlier requests. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/samples/samples.h"
#include "bench/bench.h"
#include "bench/common/report.h"
#include "bench/common/traces.h"
#include "bench/part/holders.h"
#include "io/os/loop/loop.h"
#include "joint/ctl/line/progress.h"
#include "policy/kv/kvindex/kvindex.h"

#define MAX_CASES 16
#define CHUNK     ((size_t)1 << 18) /* Updates generated before they are applied. */
#define TICK      (CGN_MSEC / 2)    /* Interval of arrivals; all requests due in it arrive together. */
/* Batches, each with one request's updates, between two readings of the thread's clock. */
#define GROUP      8
#define MAX_UPDATE 1024

struct result {
	uint64_t nodes, blocks, memberships, bytes, updates, lookups;
	double updates_per_second, updates_per_cpu_second, longest_group_us, bytes_per_membership,
		worst_bytes_per_membership;
	double lookup_p50_ns, lookup_p99_ns, held_all_p50_ns, blocks_per_lookup, lookups_per_second,
		updates_beside_per_second;
	bool kept_up;
};

struct bench {
	const char *file; /* File of the trace; NULL: generated. */
	struct trace load;
	uint64_t memberships, updates, rate, seed, max_bytes;
	size_t n_cases;
	cgn_nsec duration;
	struct result results[MAX_CASES];
};

/* A measurement with one number of nodes. */
struct run {
	const struct bench *b;
	struct result *result;
	struct kvindex *ix;
	struct fleet fleet;
	struct cgn_buf chain;
	uint64_t next; /* Index of the next request. */
	uint16_t *lanes;
	/* Members of the second part. */
	struct kvindex_reader *reader;
	struct cgn_buf chains, ends; /* Chains to look up, concatenated. */
	struct samples looked, asked;
	atomic_size_t arrived, applied; /* Number of requests looked up, and of those applied. */
	atomic_bool stop;
};

static void show_progress(uint64_t nodes, const char *what, double part)
{
	ctl_progress("%" PRIu64 " nodes: %s %3.0f %%", nodes, what, part * 100);
}

/* ---- updates ---- */

static CGN_RC make_chunk(struct run *x, size_t updates, struct cgn_err *err)
{
	x->fleet.batches.n = x->fleet.digests.n = x->fleet.tiers.n = 0;
	while (x->fleet.tiers.n < updates) {
		size_t n = holders_chain(&x->b->load, x->next++, &x->chain);
		CGN_TRY(holders_serve(&x->fleet, (const uint64_t *)(const void *)x->chain.p, n, err));
	}
	return CGN_OK;
}

static struct holders_batch batch_at(const struct run *x, size_t i)
{
	struct holders_batch b;
	memcpy(&b, x->fleet.batches.p + i * sizeof b, sizeof b);
	return b;
}

static void apply_updates(struct run *x, struct holders_batch b, size_t from)
{
	const uint64_t *digests = (const uint64_t *)(const void *)x->fleet.digests.p + from;
	const uint8_t *tiers = (const uint8_t *)x->fleet.tiers.p + from;
	kvindex_set(x->ix, x->lanes[b.node], digests, tiers, b.n);
}

static void note_bytes(struct run *x)
{
	struct kvindex_stats s;
	kvindex_stats(x->ix, &s);
	double each = s.memberships > 0 ? (double)s.bytes / (double)s.memberships : 0;
	x->result->bytes_per_membership = each;
	/* Check at every size from half of the full size on: memory grows in steps and is worst right after a
	 * step. */
	if (s.memberships * 2 >= x->b->memberships && each > x->result->worst_bytes_per_membership)
		x->result->worst_bytes_per_membership = each;
	x->result->blocks = s.blocks;
	x->result->memberships = s.memberships;
	x->result->bytes = s.bytes;
}

static void apply_chunk(struct run *x, cgn_nsec *took, cgn_nsec *cpu)
{
	size_t from = 0, n = x->fleet.batches.n / sizeof(struct holders_batch);
	cgn_nsec began = cgn_clock_now(), cpu_began = report_cpu_now(), last = cpu_began, longest = 0;
	for (size_t i = 0; i < n; i++) {
		struct holders_batch b = batch_at(x, i);
		apply_updates(x, b, from);
		from += b.n;
		if (i % GROUP != GROUP - 1 && i + 1 < n)
			continue;
		cgn_nsec now = report_cpu_now();
		longest = cgn_since(now, last) > longest ? cgn_since(now, last) : longest;
		last = now;
	}
	*cpu += last - cpu_began;
	*took += cgn_clock_now() - began;
	if ((double)longest / 1e3 > x->result->longest_group_us)
		x->result->longest_group_us = (double)longest / 1e3;
	x->result->updates += x->fleet.tiers.n;
}

static CGN_RC measure_updates(struct run *x, struct cgn_err *err)
{
	cgn_nsec took = 0, cpu = 0;
	while (x->result->updates < x->b->updates) {
		uint64_t left = x->b->updates - x->result->updates;
		CGN_TRY(make_chunk(x, left < CHUNK ? (size_t)left : CHUNK, err));
		apply_chunk(x, &took, &cpu);
		note_bytes(x);
		show_progress(x->result->nodes, "updates",
			(double)x->result->updates / (double)x->b->updates);
	}
	cgn_nsec began = cgn_clock_now(), cpu_began = report_cpu_now();
	while (kvindex_tick(x->ix, 4096))
		;
	took += cgn_since(cgn_clock_now(), began);
	cpu += report_cpu_now() - cpu_began;
	x->result->updates_per_cpu_second = (double)x->result->updates / (double)cpu * 1e9;
	x->result->updates_per_second = (double)x->result->updates / (double)took * 1e9;
	note_bytes(x);
	return CGN_OK;
}

/* ---- lookups, with a writer beside ---- */

static void *write_on(void *arg)
{
	struct run *x = arg;
	const struct timespec pause = {.tv_nsec = (long)(TICK / 4)};
	size_t done = 0, from = 0;
	while (!atomic_load(&x->stop) || done < atomic_load(&x->arrived)) {
		if (done == atomic_load(&x->arrived)) {
			(void)kvindex_tick(x->ix, MAX_UPDATE);
			(void)nanosleep(&pause, NULL);
			continue;
		}
		struct holders_batch b = batch_at(x, done);
		apply_updates(x, b, from);
		from += b.n;
		atomic_store(&x->applied, ++done);
	}
	return NULL;
}

static uint64_t look_up(struct run *x, const uint64_t *chain, size_t n)
{
	uint64_t most = 0;
	/* Generate the digests just before the lookup, so that they are in the CPU's cache, as in a
	 * router. */
	x->chain.n = 0;
	cgn_buf_add(&x->chain, chain, n * sizeof *chain);
	cgn_nsec t0 = cgn_clock_now();
	kvindex_match(x->reader, (const uint64_t *)(const void *)x->chain.p, n);
	cgn_nsec t1 = cgn_clock_now();
	for (size_t i = 0; i < x->fleet.n_nodes; i++) {
		uint32_t held = kvindex_held(x->reader, x->lanes[i], NULL);
		most = held > most ? held : most;
	}
	samples_add(&x->looked, t1 - t0);
	samples_add(&x->asked, cgn_since(cgn_clock_now(), t1));
	return most;
}

/* Look up requests at the fixed rate. A late lookup is measured too. */
static void read_on(struct run *x)
{
	const uint64_t *chains = (const uint64_t *)(const void *)x->chains.p,
		       *ends = (const uint64_t *)(const void *)x->ends.p;
	size_t n = x->ends.n / sizeof *ends, i = 0;
	uint64_t blocks = 0;
	const struct timespec pause = {.tv_nsec = (long)TICK};
	cgn_nsec began = cgn_clock_now(), shown = began, now = began;
	for (; i < n; now = cgn_clock_now()) {
		size_t due = (size_t)((double)cgn_since(now, began) / 1e9 * (double)x->b->rate);
		for (; i < n && i < due; i++) {
			size_t from = i > 0 ? ends[i - 1] : 0;
			blocks += look_up(x, chains + from, ends[i] - from);
			atomic_store(&x->arrived, i + 1);
		}
		if (cgn_since(now, shown) > 100 * CGN_MSEC) {
			show_progress(x->result->nodes, "lookups", (double)i / (double)n);
			shown = now;
		}
		(void)nanosleep(&pause, NULL);
	}
	double took = (double)cgn_since(now, began) / 1e9;
	x->result->lookups = n;
	x->result->lookups_per_second = (double)n / took;
	x->result->updates_beside_per_second = (double)x->fleet.tiers.n / took;
	x->result->blocks_per_lookup = (double)blocks / (double)n;
	/* True when nothing piled up: the last lookups were in time, and the writer was at most a hundredth
	 * of the requests behind. */
	x->result->kept_up = took < (double)n / (double)x->b->rate * 1.02 + 0.02 &&
		n - atomic_load(&x->applied) < n / 100 + 100;
}

static CGN_RC make_requests(struct run *x, size_t n, struct cgn_err *err)
{
	x->fleet.batches.n = x->fleet.digests.n = x->fleet.tiers.n = 0;
	for (size_t i = 0; i < n; i++) {
		size_t len = holders_chain(&x->b->load, x->next++, &x->chain);
		cgn_buf_add(&x->chains, x->chain.p, x->chain.n);
		const uint64_t end = x->chains.n / sizeof(uint64_t);
		cgn_buf_add(&x->ends, &end, sizeof end);
		CGN_TRY(holders_serve(&x->fleet, (const uint64_t *)(const void *)x->chain.p, len, err));
	}
	return x->chains.bad || x->ends.bad ? CGN_FAIL(err, NO_MEMORY, "no memory for %zu requests", n)
					    : CGN_OK;
}

static CGN_RC measure_lookups(struct run *x, struct cgn_err *err)
{
	pthread_t writer;
	size_t n = (size_t)((double)x->b->duration / 1e9 * (double)x->b->rate);
	CGN_TRY(make_requests(x, n > 0 ? n : 1, err));
	if (pthread_create(&writer, NULL, write_on, x) != 0)
		return CGN_FAIL(err, UNAVAILABLE, "cannot start a thread");
	read_on(x);
	atomic_store(&x->stop, true);
	(void)pthread_join(writer, NULL);
	x->result->lookup_p50_ns = samples_ms(&x->looked, 0.5) * 1e6;
	x->result->lookup_p99_ns = samples_ms(&x->looked, 0.99) * 1e6;
	x->result->held_all_p50_ns = samples_ms(&x->asked, 0.5) * 1e6;
	return CGN_OK;
}

/* ---- a case ---- */

static CGN_RC measure_case(struct run *x, struct cgn_err *err)
{
	const struct bench *b = x->b;
	const struct kvindex_cfg cfg = {.max_bytes = b->max_bytes, .max_readers = 1, .seed = b->seed};
	size_t nodes = x->result->nodes, capacity = b->memberships / nodes;
	CGN_TRY(kvindex_new(&cfg, &x->ix, err));
	CGN_TRY(kvindex_reader_new(x->ix, &x->reader, err));
	CGN_TRY(holders_init(&x->fleet, nodes, capacity > 0 ? capacity : 1, b->seed, err));
	x->lanes = CGN_NEW_ARRAY(uint16_t, nodes);
	for (size_t i = 0; i < nodes; i++)
		CGN_TRY(kvindex_node_add(x->ix, &x->lanes[i], err));
	CGN_TRY(measure_updates(x, err));
	return measure_lookups(x, err);
}

static CGN_RC run_case(const struct bench *b, struct result *r, struct cgn_err *err)
{
	struct run x = {.b = b, .result = r};
	cgn_rc rc = measure_case(&x, err);
	kvindex_reader_free(&x.reader);
	kvindex_free(&x.ix);
	holders_fini(&x.fleet);
	free(x.lanes);
	cgn_buf_fini(&x.chain);
	cgn_buf_fini(&x.chains);
	cgn_buf_fini(&x.ends);
	samples_fini(&x.looked);
	samples_fini(&x.asked);
	return rc;
}

/* ---- report ---- */

static CGN_RC report_json(const struct bench *b, struct cgn_err *err)
{
	struct report_doc doc;
	struct json_out *o = report_begin(&doc, "index");
	json_key_z(o, "workload", b->file != NULL ? b->file : "generated");
	json_key_u64(o, "seed", b->seed);
	json_key_open(o, "results", '[');
	for (size_t i = 0; i < b->n_cases; i++) {
		const struct result *r = &b->results[i];
		const struct {
			const char *name;
			double v;
		} numbers[] = {{"nodes", (double)r->nodes}, {"updates_per_second", r->updates_per_second},
			{"updates_per_cpu_second", r->updates_per_cpu_second},
			{"lookup_p50_ns", r->lookup_p50_ns}, {"lookup_p99_ns", r->lookup_p99_ns},
			{"bytes_per_membership", r->bytes_per_membership},
			{"worst_bytes_per_membership", r->worst_bytes_per_membership},
			{"blocks", (double)r->blocks}, {"memberships", (double)r->memberships},
			{"bytes", (double)r->bytes}, {"updates", (double)r->updates},
			{"longest_group_us", r->longest_group_us}, {"lookups", (double)r->lookups},
			{"lookups_per_second", r->lookups_per_second},
			{"updates_beside_per_second", r->updates_beside_per_second},
			{"blocks_per_lookup", r->blocks_per_lookup}, {"held_all_p50_ns", r->held_all_p50_ns}};
		json_open(o, '{');
		for (size_t k = 0; k < CGN_COUNT(numbers); k++) {
			json_key_f64(o, numbers[k].name, numbers[k].v);
		}
		json_key_bool(o, "kept_up", r->kept_up);
		json_close(o, '}');
	}
	return report_end(&doc, err);
}

static CGN_RC report_table(const struct bench *b, struct cgn_err *err)
{
	struct ctl_table t = {0};
	for (size_t i = 0; i < b->n_cases; i++) {
		const struct result *r = &b->results[i];
		CTL_CELL(&t, "NODES", "%" PRIu64, r->nodes);
		CTL_CELL(&t, "BLOCKS", "%" PRIu64, r->blocks);
		CTL_CELL(&t, "MEMBERSHIPS", "%" PRIu64, r->memberships);
		CTL_CELL(&t, "UPDATES/S", "%.2f M", r->updates_per_second / 1e6);
		CTL_CELL(&t, "/CPU-S", "%.2f M", r->updates_per_cpu_second / 1e6);
		CTL_CELL(&t, "LONGEST", "%.0f us", r->longest_group_us);
		CTL_CELL(&t, "BYTES/MEMBERSHIP", "%.1f", r->bytes_per_membership);
		CTL_CELL(&t, "WORST", "%.1f", r->worst_bytes_per_membership);
		report_put_time(&t, "LOOKUP P50", 0, " ns", r->lookup_p50_ns);
		report_put_time(&t, "P99", 0, " ns", r->lookup_p99_ns);
		CTL_CELL(&t, "BLOCKS/LOOKUP", "%.1f", r->blocks_per_lookup);
		CTL_CELL(&t, "KEPT UP", r->kept_up ? "yes" : "no");
	}
	return ctl_table_print(&t, false, err);
}

/* ---- set-up ---- */

static CGN_RC run_bench(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	b->file = ctl_flag(a, "--trace");
	uint64_t nodes[MAX_CASES];
	CGN_TRY(ctl_flag_u64s(a, "--nodes", 1, KVINDEX_NODES, nodes, MAX_CASES, &b->n_cases, err));
	for (size_t i = 0; i < b->n_cases; i++)
		b->results[i].nodes = nodes[i];
	CGN_TRY(ctl_flag_u64(a, "--memberships", 1000, UINT64_C(1) << 28, &b->memberships, err));
	CGN_TRY(ctl_flag_u64(a, "--updates", 1, UINT64_C(1) << 40, &b->updates, err));
	CGN_TRY(ctl_flag_u64(a, "--rate", 1, 10000000, &b->rate, err));
	CGN_TRY(ctl_flag_u64(a, "--max-bytes", 1 << 20, UINT64_C(1) << 40, &b->max_bytes, err));
	CGN_TRY(ctl_flag_u64(a, "--seed", 1, UINT64_MAX, &b->seed, err));
	CGN_TRY(ctl_flag_duration(a, "--duration", &b->duration, err));
	const struct workload_cfg made = {.kind = WORKLOAD_SERVICE,
		.seed = b->seed,
		.requests = 12000,
		.rate = 3};
	CGN_TRY(b->file != NULL ? ctl_trace_read(b->file, 0, 0, &b->load, err)
				: workload_make(&made, &b->load, err));
	for (size_t i = 0; i < b->n_cases; i++)
		CGN_TRY(run_case(b, &b->results[i], err));
	ctl_progress_end();
	return (a->json ? report_json : report_table)(b, err);
}

CGN_RC ctl_bench_index(const struct ctl_args *a, struct cgn_err *err)
{
	struct bench *b = CGN_NEW(struct bench);
	cgn_rc rc = run_bench(a, b, err);
	trace_fini(&b->load);
	free(b);
	return rc;
}
