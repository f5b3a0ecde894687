/* SPDX-License-Identifier: Apache-2.0 */
/* bench kvstore: the cost of a get and a put beside copying the bytes, by size and number of threads; and the
 * memory of an entry, from 10^4 to 10^7 entries.
 *
 * The floors are measured in the same run by the same threads. For a get that copies: a memcpy out of memory
 * that is in no cache. For a get that verifies: a pass of XXH3-64 over it. For a put: a memcpy into such
 * memory and a pass over it. For a put into the heap: malloc + memcpy + free. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

#include <sys/wait.h>

#include "base/mix/mix.h"
#include "base/samples/samples.h"
#include "joint/kv/kvstore/kvstore.h"

#define STORE_BYTES ((uint64_t)768 << 20)
#define WORK_BYTES  ((uint64_t)512 << 20) /* Larger than any cache. */
#define MAX_THREADS 4
#define RUN_FOR     (200 * CGN_MSEC)

enum op {
	OP_MEMCPY,
	OP_XXH3,
	OP_MALLOC_MEMCPY,
	OP_GET,
	OP_GET_VERIFY,
	OP_GET_COPY,
	OP_PUT,
	OP_PUT_FRESH,
	OPS
};
static const char *const op_names[OPS] = {"memcpy", "xxh3", "malloc_memcpy_free", "get", "get_verify",
	"get_copy", "put", "put_fresh"};

struct world {
	struct kvstore *store;
	char *heap; /* WORK_BYTES of values outside the store */
	uint64_t size, n;
};
struct worker {
	pthread_t thread;
	const struct world *world;
	enum op op;
	unsigned rng;
	uint64_t fresh; /* Keys that were never put. */
	char *buffer;
	struct samples took;
	uint64_t sum;
};

static struct block_key key_of(uint64_t n)
{
	struct block_key k = {.segment = 0};
	for (size_t i = 0; i < sizeof k.digest.b / sizeof n; i++) {
		uint64_t word = (n * 4 + i + 1) * MIX_GOLDEN;
		word = (word ^ word >> 29) * 0xbf58476d1ce4e5b9ULL;
		memcpy(k.digest.b + i * sizeof word, &word, sizeof word);
	}
	return k;
}

static _Noreturn void give_up(const char *what, const struct cgn_err *err)
{
	(void)fprintf(stderr, "bench kvstore: %s: %s\n", what, err->msg);
	exit(1);
}

static void store_put(struct kvstore *s, uint64_t n, const char *from, uint64_t size)
{
	const struct block_meta meta = {.model = CGN_STR("bench")};
	struct block_key k = key_of(n);
	struct kvstore_writer *w = NULL;
	struct cgn_err err = {0};
	if (!cgn_ok(kvstore_put(s, &k, &meta, size, &w, &err)))
		give_up("put", &err);
	kvstore_writer_add(w, from, size);
	if (!cgn_ok(kvstore_writer_commit(&w, NULL, false, &err)))
		give_up("commit", &err);
}

static uint64_t store_get(struct worker *w, uint64_t n, bool verify, bool copy)
{
	struct block_key k = key_of(n);
	struct kvstore_block *b = kvstore_get_ram(w->world->store, &k, verify);
	struct iovec iov[16];
	size_t n_iov = 0;
	uint64_t at = 0;
	while (copy && b != NULL && at < kvstore_block_size(b)) {
		(void)kvstore_block_iov(b, at, UINT64_MAX, iov, CGN_COUNT(iov), &n_iov);
		for (size_t i = 0; i < n_iov; at += iov[i++].iov_len)
			memcpy(w->buffer + at, iov[i].iov_base, iov[i].iov_len);
	}
	uint64_t got = b != NULL;
	kvstore_block_unref(&b);
	return got;
}

static uint64_t to_heap(const char *from, uint64_t size)
{
	char *p = malloc(size);
	if (p == NULL)
		return 0;
	memcpy(p, from, size);
	uint64_t last = (uint64_t)p[size - 1];
	free(p);
	return last;
}

static uint64_t op_once(struct worker *w, uint64_t n)
{
	const struct world *world = w->world;
	const char *at = world->heap + n * world->size;
	switch (w->op) {
	case OP_MEMCPY:
		memcpy(w->buffer, at, world->size);
		return (uint64_t)w->buffer[world->size - 1];
	case OP_XXH3:
		return XXH3_64bits(at, world->size);
	case OP_MALLOC_MEMCPY:
		return to_heap(at, world->size);
	case OP_GET:
		return store_get(w, n, false, false);
	case OP_GET_VERIFY:
		return store_get(w, n, true, false);
	case OP_GET_COPY:
		return store_get(w, n, false, true);
	case OP_PUT:
	case OP_PUT_FRESH:
		store_put(world->store, w->fresh++, w->buffer, world->size);
		return 0;
	case OPS:
		break;
	}
	return 0;
}

static void *worker_run(void *arg)
{
	struct worker *w = arg;
	cgn_nsec began = cgn_clock_now(), last = began;
	while (last - began < RUN_FOR) {
		w->rng = w->rng * 1103515245U + 12345U;
		w->sum += op_once(w, (w->rng >> 3) % w->world->n);
		cgn_nsec now = cgn_clock_now();
		samples_add(&w->took, now - last);
		last = now;
	}
	return NULL;
}

static void run_threads(struct worker *workers, unsigned threads)
{
	for (unsigned i = 0; i < threads; i++)
		if (pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]) != 0)
			give_up("threads", &(struct cgn_err){.msg = "cannot start one"});
	for (unsigned i = 0; i < threads; i++)
		(void)pthread_join(workers[i].thread, NULL);
}

static void put_row(struct json_out *o, const struct world *world, enum op op, unsigned threads)
{
	struct worker workers[MAX_THREADS];
	struct samples all = {0};
	static uint64_t fresh = (uint64_t)1 << 40;
	for (unsigned i = 0; i < threads; i++) {
		workers[i] = (struct worker){.world = world,
			.op = op,
			.rng = 5 + i,
			.fresh = fresh,
			.buffer = malloc(world->size)};
		fresh += (uint64_t)1 << 32;
		if (workers[i].buffer == NULL)
			give_up("a buffer", &(struct cgn_err){.msg = "no memory"});
		memset(workers[i].buffer, (int)i + 1, world->size);
	}
	run_threads(workers, threads);
	for (unsigned i = 0; i < threads; i++) {
		const uint64_t *ns = (const uint64_t *)(const void *)workers[i].took.ns.p;
		for (size_t k = 0; k < samples_count(&workers[i].took); k++)
			samples_add(&all, ns[k]);
		samples_fini(&workers[i].took);
		free(workers[i].buffer);
	}
	json_open(o, '{');
	json_key_str(o, "op", cgn_str_of(op_names[op]));
	json_key_u64(o, "bytes", world->size);
	json_key_u64(o, "threads", threads);
	json_key_u64(o, "count", samples_count(&all));
	json_key_u64(o, "mean_ns", (uint64_t)(samples_mean_ms(&all) * 1e6));
	json_key_u64(o, "p50_ns", (uint64_t)(samples_ms(&all, 0.5) * 1e6));
	json_key_u64(o, "p99_ns", (uint64_t)(samples_ms(&all, 0.99) * 1e6));
	json_close(o, '}');
	samples_fini(&all);
}

static struct kvstore *store_new(uint64_t bytes)
{
	struct kvstore_cfg cfg = {.ram_bytes = bytes};
	struct kvstore *s = NULL;
	struct cgn_err err = {0};
	if (!cgn_ok(kvstore_new(&cfg, &s, &err)))
		give_up("a store", &err);
	return s;
}

/* Put the whole working set, and touch all memory of the store. */
static void store_load(const struct world *world)
{
	struct block_info info;
	for (uint64_t n = 0; n < STORE_BYTES / world->size; n++) {
		struct block_key k = key_of(n);
		if (!kvstore_lookup(world->store, &k, &info))
			store_put(world->store, n, world->heap + n % world->n * world->size, world->size);
	}
	for (uint64_t n = 0; n < world->n; n++) {
		struct block_key k = key_of(n);
		struct kvstore_block *b = kvstore_get_ram(world->store, &k, false);
		if (b == NULL)
			store_put(world->store, n, world->heap + n * world->size, world->size);
		kvstore_block_unref(&b);
	}
}

static void measure_speed(struct json_out *o, uint64_t size)
{
	struct world world = {.size = size, .n = WORK_BYTES / size, .heap = malloc(WORK_BYTES)};
	if (world.heap == NULL)
		give_up("values", &(struct cgn_err){.msg = "no memory"});
	memset(world.heap, 7, WORK_BYTES);
	world.store = store_new((uint64_t)4 << 30); /* More than the bench writes in this time. */
	put_row(o, &world, OP_PUT_FRESH, 1);
	kvstore_free(&world.store);
	world.store = store_new(STORE_BYTES);
	for (unsigned threads = 1; threads <= MAX_THREADS; threads *= 2) {
		store_load(&world);
		for (enum op op = 0; op <= OP_PUT; op++) /* Puts come last, because they evict values. */
			put_row(o, &world, op, threads);
	}
	kvstore_free(&world.store);
	free(world.heap);
}

/* ---- memory of an entry ---- */
static uint64_t anonymous_bytes(void)
{
	char line[256];
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/self/status", "re");
	while (f != NULL && fgets(line, sizeof line, f) != NULL && sscanf(line, "RssAnon: %llu", &kib) != 1)
		;
	if (f != NULL)
		(void)fclose(f);
	return kib * 1024;
}

/* Values of no bytes take a slot of the arena that is never written to: only the index grows. */
static void measure_entries(struct json_out *o, uint64_t n)
{
	struct kvstore *s = store_new(n * 1024 + (1 << 20));
	struct kvstore_stats st, full;
	struct samples took = {0};
	for (uint64_t i = 0; i < 65536; i++) { /* Fill the ring of changes, whose size is constant. */
		struct block_key k = key_of(UINT64_MAX / 8 + i);
		store_put(s, UINT64_MAX / 8 + i, "", 0);
		(void)kvstore_remove(s, &k);
	}
	uint64_t before = anonymous_bytes();
	for (uint64_t i = 0; i < n; i++) {
		cgn_nsec began = cgn_clock_now();
		store_put(s, i, "", 0);
		if (i % 16 == 0 || n < 200000)
			samples_add(&took, cgn_clock_now() - began);
	}
	uint64_t after = anonymous_bytes() - took.ns.n; /* Without the bench's own samples. */
	kvstore_stats(s, &st);
	for (uint64_t i = 0; i < 2 * n; i++)
		store_put(s, n + i, "", 0);
	kvstore_stats(s, &full);
	json_open(o, '{');
	json_key_u64(o, "entries", st.tier[BLOCK_RAM].blocks);
	json_key_f64(o, "index_bytes_per_entry", (double)st.index_bytes / (double)st.tier[BLOCK_RAM].blocks);
	json_key_f64(o, "rss_bytes_per_entry",
		(double)(int64_t)(after - before) / (double)st.tier[BLOCK_RAM].blocks);
	json_key_f64(o, "index_bytes_per_entry_after_evictions",
		(double)full.index_bytes / (double)full.tier[BLOCK_RAM].blocks);
	json_key_u64(o, "evictions", full.tier[BLOCK_RAM].evictions);
	json_key_u64(o, "put_p50_ns", (uint64_t)(samples_ms(&took, 0.5) * 1e6));
	json_key_u64(o, "put_p99_ns", (uint64_t)(samples_ms(&took, 0.99) * 1e6));
	json_key_u64(o, "put_max_ns", (uint64_t)(samples_ms(&took, 1) * 1e6));
	json_close(o, '}');
	samples_fini(&took);
	kvstore_free(&s);
}

/* Run in a process of its own, so that memory used by one measurement is not free for the next. */
static void run_apart(void (*fn)(struct json_out *o, uint64_t n), uint64_t n, bool last)
{
	(void)fflush(stdout);
	pid_t pid = fork();
	if (pid < 0)
		give_up("fork", &(struct cgn_err){.msg = "cannot"});
	if (pid == 0) {
		struct cgn_buf buf = {0};
		struct json_out o = json_out_to(&buf);
		fn(&o, n);
		(void)printf("%s%s\n", cgn_buf_z(&buf), last ? "" : ",");
		(void)fflush(stdout);
		_exit(0);
	}
	int status = 0;
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
		give_up("a part of it", &(struct cgn_err){.msg = "ended badly"});
}

static void measure_speeds(struct json_out *o, uint64_t size)
{
	json_open(o, '[');
	measure_speed(o, size);
	json_close(o, ']');
}

int main(int argc, char **argv)
{
	const uint64_t most = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000000;
	(void)printf("{\"entries\":[\n");
	for (uint64_t n = 10000; n <= most; n *= 10)
		run_apart(measure_entries, n, n * 10 > most);
	(void)printf("],\"speed\":[\n");
	for (uint64_t size = 4096; size <= 1 << 20; size *= 4)
		run_apart(measure_speeds, size, size == 1 << 20);
	(void)printf("]}\n");
	return 0;
}
