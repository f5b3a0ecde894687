/* SPDX-License-Identifier: Apache-2.0 */
/* bench kv: measures a running block store with one call after another from one thread. A measurement ends
 * with the value in a buffer of this process and its checksum verified. The lower bound, a memcpy between two
 * buffers of this process, is measured alternately. A get by descriptor costs three system calls here (send a
 * packet, which also returns the last value; wait; receive a packet) and two reads of the value's bytes, for
 * the checksum and for the copy. The store reads none of the bytes. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/mman.h>

#include "base/pb/pb.h"
#include "base/samples/samples.h"
#include "base/sum/sum.h"
#include "bench/bench.h"
#include "bench/common/report.h"
#include "cognitora/v1/kv.pb-c.h"
#include "io/wire/grpc/grpc.h"
#include "joint/ctl/line/progress.h"
#include "joint/kv/kvclient/kvclient.h"
#include "policy/node/proto/proto.h"

#define MAX_SIZES   8
#define MAX_RESULTS (1 + 6 * MAX_SIZES)
/* Values of each size, used in turn, so that only the last-level cache can hold all of them. */
#define KEYS       16
#define GRPC_CHUNK ((uint64_t)256 * 1024)
#define PATIENCE   (60 * CGN_SEC)
#define WARM_UP    20 /* Calls that are not measured. */

struct result {
	const char *op;
	uint64_t bytes;
	struct samples took;
};

struct bench {
	struct cgn_loop *loop;
	struct kvclient *kv;
	struct grpc_channel *channel;
	const char *uds;
	uint64_t count, poll_us, sizes[MAX_SIZES];
	size_t n_sizes, n_results;
	struct result results[MAX_RESULTS];
	/* The running measurement. */
	struct result *now;
	struct result *plain; /* Results of memcpy, then of memcpy and checksum. */
	CGN_RC (*start)(struct bench *b, struct cgn_err *err);
	uint64_t size, done, key_seed, filled, checksum;
	cgn_nsec began;
	uint8_t *mine, *values; /* Buffer of the largest size; KEYS values. */
	int files[KEYS];
	struct grpc_call *call;
	uint64_t sent;
	struct cgn_err err;
	struct cgn_timer patience;
};

static struct block_key key_of(const struct bench *b, uint64_t i)
{
	const uint64_t words[] = {b->key_seed, b->size, i % KEYS};
	return (struct block_key){.digest = digest_of((struct cgn_str){(const char *)words, sizeof words})};
}

static uint8_t *value_of(const struct bench *b, uint64_t i)
{
	return b->values + i % KEYS * b->size;
}

/* ---- consecutive calls ---- */
static void bench_stop(struct bench *b, const struct cgn_err *why)
{
	if (why != NULL)
		b->err = *why;
	cgn_loop_stop(b->loop);
}

static void next_call(struct bench *b)
{
	struct cgn_err err = {0};
	b->began = cgn_clock_now();
	if (!cgn_ok(b->start(b, &err)))
		bench_stop(b, &err);
}

static void call_finished(struct bench *b)
{
	if (b->done++ >= WARM_UP)
		samples_add(&b->now->took, cgn_since(cgn_clock_now(), b->began));
	if (b->done == b->count + WARM_UP)
		bench_stop(b, NULL);
	else
		next_call(b);
}

static void on_patience(struct cgn_timer *t)
{
	struct bench *b = CGN_CONTAINER(t, struct bench, patience);
	struct cgn_err err;
	(void)CGN_FAIL(&err, DEADLINE, "%s did not end within %llu s", b->now->op,
		(unsigned long long)(PATIENCE / CGN_SEC));
	bench_stop(b, &err);
}

static CGN_RC run_calls(struct bench *b, const char *op, uint64_t bytes,
	CGN_RC (*start)(struct bench *b, struct cgn_err *err), struct cgn_err *err)
{
	CGN_MUST(b->n_results < MAX_RESULTS);
	b->now = &b->results[b->n_results++];
	*b->now = (struct result){.op = op, .bytes = bytes};
	b->start = start;
	b->done = 0;
	b->err = (struct cgn_err){.code = CGN_FINE};
	ctl_progress("%s of %llu bytes", op, (unsigned long long)bytes);
	cgn_timer_set(&b->patience, PATIENCE);
	next_call(b);
	cgn_loop_run(b->loop);
	cgn_timer_cancel(&b->patience);
	if (b->err.code == CGN_FINE)
		return CGN_OK;
	*err = b->err;
	return CGN_RC_OF(b->err.code);
}

/* ---- by descriptor ---- */
static bool answer_failed(struct bench *b, const struct kvclient_answer *a)
{
	if (a->err->code != CGN_FINE)
		bench_stop(b, a->err);
	return a->err->code != CGN_FINE;
}

static void on_done(void *user, const struct kvclient_answer *a)
{
	if (!answer_failed(user, a))
		call_finished(user);
}

static void on_value(void *user, const struct kvclient_answer *a)
{
	struct bench *b = user;
	struct kvclient_lease *l = a->lease;
	size_t n, at = 0;
	if (answer_failed(b, a))
		return;
	const struct iovec *iov = kvclient_lease_iov(l, &n);
	for (size_t i = 0; i < n; at += iov[i++].iov_len)
		memcpy(b->mine + at, iov[i].iov_base, iov[i].iov_len);
	if (b->done == 0 && memcmp(b->mine, value_of(b, b->done), b->size) != 0)
		bench_stop(b,
			&(struct cgn_err){.code = CGN_BAD_GATEWAY,
				.msg = "the store returned other bytes than were put"});
	kvclient_lease_release(&l);
	if (b->err.code == CGN_FINE)
		call_finished(b);
}

static CGN_RC start_lookup(struct bench *b, struct cgn_err *err)
{
	const struct block_key k = key_of(b, b->done);
	return kvclient_lookup(b->kv, &k, 1, false, (struct cgn_str){0}, on_done, b, NULL, err);
}

/* Measure memcpy, alternately with the calls, so that other load on the machine affects both. The variants
 * with and without checksum alternate too, because a value that was just read is in a cache. */
static void copy_here(struct bench *b, bool sum)
{
	struct result *r = &b->plain[sum];
	volatile uint64_t seen = 0; /* Keeps the compiler from removing the checksum. */
	cgn_nsec began = cgn_clock_now();
	if (sum)
		seen = seen + sum64(value_of(b, b->done), b->size);
	memcpy(b->mine, value_of(b, b->done), b->size);
	/* Makes the compiler assume that the buffer is read. */
	__asm__ volatile("" ::"r"(b->mine) : "memory");
	if (b->done >= WARM_UP)
		samples_add(&r->took, cgn_since(cgn_clock_now(), began));
}

static CGN_RC start_get(struct bench *b, struct cgn_err *err)
{
	const struct block_key k = key_of(b, b->done);
	copy_here(b, b->done % 2 == 1);
	b->began = cgn_clock_now();
	return kvclient_get(b->kv, &k, KVCLIENT_HERE_ONLY, (struct cgn_str){0}, on_value, b, NULL, err);
}

static CGN_RC start_put(struct bench *b, struct cgn_err *err)
{
	const struct block_key k = key_of(b, b->done);
	const struct block_meta meta = {.model = CGN_STR("bench")};
	const struct kvclient_source from = {.fd = b->files[b->done % KEYS], .length = b->size};
	return kvclient_put(b->kv, &k, &meta, &from, false, on_done, b, NULL, err);
}

static CGN_RC start_remove(struct bench *b, struct cgn_err *err)
{
	const struct block_key k = key_of(b, b->done);
	return kvclient_remove(b->kv, &k, 1, on_done, b, NULL, err);
}

/* ---- over gRPC ---- */
static CGN_RC start_call(struct bench *b, const char *method, const struct grpc_call_ops *ops,
	struct cgn_err *err)
{
	char path[64];
	(void)snprintf(path, sizeof path, PROTO_KV "%s", method);
	return grpc_call_start(b->channel, path, PATIENCE, ops, b, &b->call, err);
}

static void send_message(struct bench *b, const void *message)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	pb_pack(message, &out);
	const struct iovec iov = {out.p, out.n};
	grpc_send(b->call, &iov, 1);
}

static void on_chunk(struct grpc_call *call, void *user, const uint8_t *p, size_t n)
{
	struct bench *b = user;
	CGN_ON_EXIT(pb_free) Cognitora__V1__KvGetChunk *m = NULL;
	(void)call;
	if (!cgn_ok(pb_unpack(&cognitora__v1__kv_get_chunk__descriptor, (struct cgn_str){(const char *)p, n},
		    &m, &b->err)))
		return;
	if (m->entry != NULL)
		b->checksum = m->entry->checksum;
	if (m->data.len > b->size - b->filled)
		return;
	if (m->data.len > 0)
		memcpy(b->mine + b->filled, m->data.data, m->data.len);
	b->filled += m->data.len;
}

static void on_entry(struct grpc_call *call, void *user, const uint8_t *p, size_t n)
{
	(void)call;
	(void)p;
	((struct bench *)user)->filled = n;
}

static void pump_put(struct grpc_call *call, void *user)
{
	struct bench *b = user;
	(void)call;
	while (b->sent < b->size && !grpc_over_mark(b->call)) {
		Cognitora__V1__KvPutChunk m = COGNITORA__V1__KV_PUT_CHUNK__INIT;
		m.data.len = b->size - b->sent < GRPC_CHUNK ? b->size - b->sent : GRPC_CHUNK;
		m.data.data = value_of(b, b->done) + b->sent;
		b->sent += m.data.len;
		send_message(b, &m);
		if (b->sent == b->size)
			grpc_half_close(b->call);
	}
}

static void on_close(struct grpc_call *call, void *user, const struct cgn_err *why)
{
	struct bench *b = user;
	bool get = b->start != NULL && b->sent == 0;
	(void)call;
	b->call = NULL;
	if (why->code != CGN_FINE)
		bench_stop(b, why);
	else if (get && (b->filled != b->size || sum64(b->mine, b->size) != b->checksum))
		bench_stop(b,
			&(struct cgn_err){.code = CGN_BAD_GATEWAY,
				.msg = "the store returned other bytes than were put"});
	else
		call_finished(b);
}

static CGN_RC start_grpc_get(struct bench *b, struct cgn_err *err)
{
	static const struct grpc_call_ops ops = {.on_message = on_chunk, .on_close = on_close};
	struct block_key k = key_of(b, b->done);
	Cognitora__V1__KvKey key = COGNITORA__V1__KV_KEY__INIT;
	Cognitora__V1__KvGetRequest rq = COGNITORA__V1__KV_GET_REQUEST__INIT;
	key.digest = (ProtobufCBinaryData){DIGEST_BYTES, k.digest.b};
	rq.key = &key;
	b->filled = b->sent = 0;
	CGN_TRY(start_call(b, "Get", &ops, err));
	send_message(b, &rq);
	grpc_half_close(b->call);
	return CGN_OK;
}

static CGN_RC start_grpc_put(struct bench *b, struct cgn_err *err)
{
	static const struct grpc_call_ops ops = {.on_message = on_entry,
		.on_drain = pump_put,
		.on_close = on_close};
	struct block_key k = key_of(b, b->done);
	Cognitora__V1__KvKey key = COGNITORA__V1__KV_KEY__INIT;
	Cognitora__V1__KvPutHead head = COGNITORA__V1__KV_PUT_HEAD__INIT;
	Cognitora__V1__KvPutChunk first = COGNITORA__V1__KV_PUT_CHUNK__INIT;
	key.digest = (ProtobufCBinaryData){DIGEST_BYTES, k.digest.b};
	head.key = &key;
	head.size = b->size;
	first.head = &head;
	b->sent = 0;
	CGN_TRY(start_call(b, "Put", &ops, err));
	send_message(b, &first);
	pump_put(b->call, b);
	return CGN_OK;
}

/* ---- a size ---- */
static CGN_RC make_values(struct bench *b, struct cgn_err *err)
{
	b->mine = malloc(b->size);
	b->values = malloc(KEYS * b->size);
	if (b->mine == NULL || b->values == NULL)
		return CGN_FAIL(err, NO_MEMORY, "no memory for %d values of %llu bytes", KEYS,
			(unsigned long long)b->size);
	memset(b->mine, 0, b->size);
	cgn_random(b->values, KEYS * b->size);
	for (size_t i = 0; i < KEYS; i++) {
		b->files[i] = memfd_create("bench", MFD_CLOEXEC);
		if (b->files[i] < 0 || write(b->files[i], value_of(b, i), b->size) != (ssize_t)b->size)
			return CGN_FAIL(err, NO_MEMORY, "no memory for %d values of %llu bytes", KEYS,
				(unsigned long long)b->size);
	}
	return CGN_OK;
}

static void drop_values(struct bench *b)
{
	for (size_t i = 0; i < KEYS; i++)
		if (b->files[i] >= 0)
			close(b->files[i]);
	free(b->mine);
	free(b->values);
	b->mine = b->values = NULL;
}

static CGN_RC run_size(struct bench *b, struct cgn_err *err)
{
	CGN_TRY(make_values(b, err));
	CGN_TRY(run_calls(b, "put_descriptor", b->size, start_put, err));
	b->plain = &b->results[b->n_results];
	b->plain[0] = (struct result){.op = "memcpy", .bytes = b->size};
	b->plain[1] = (struct result){.op = "memcpy_and_checksum", .bytes = b->size};
	b->n_results += 2;
	CGN_TRY(run_calls(b, "get_descriptor", b->size, start_get, err));
	CGN_TRY(run_calls(b, "put_grpc", b->size, start_grpc_put, err));
	CGN_TRY(run_calls(b, "get_grpc", b->size, start_grpc_get, err));
	struct result *last = &b->results[b->n_results];
	/* Removes existing values; errors are ignored. */
	CGN_TRY(run_calls(b, "remove", b->size, start_remove, err));
	samples_fini(&last->took);
	b->n_results--;
	return CGN_OK;
}

/* ---- the report ---- */
static double mib_per_s(const struct result *r)
{
	double ms = samples_mean_ms(&r->took);
	return ms == 0 ? 0 : (double)r->bytes / (1 << 20) / (ms / 1e3);
}

static CGN_RC report_json(struct bench *b, struct cgn_err *err)
{
	struct report_doc doc;
	struct json_out *o = report_begin(&doc, "kv");
	json_key_u64(o, "values", KEYS);
	json_key_u64(o, "poll_us", b->poll_us);
	json_key_open(o, "results", '[');
	for (size_t i = 0; i < b->n_results; i++) {
		struct result *r = &b->results[i];
		json_open(o, '{');
		json_key_z(o, "op", r->op);
		json_key_u64(o, "bytes", r->bytes);
		json_key_u64(o, "count", samples_count(&r->took));
		json_key_f64(o, "p50_us", samples_us(&r->took, 0.5));
		json_key_f64(o, "p99_us", samples_us(&r->took, 0.99));
		json_key_f64(o, "max_us", samples_us(&r->took, 1));
		json_key_f64(o, "mib_per_s", mib_per_s(r));
		json_close(o, '}');
	}
	return report_end(&doc, err);
}

static CGN_RC report_table(struct bench *b, struct cgn_err *err)
{
	struct ctl_table t = {0};
	for (size_t i = 0; i < b->n_results; i++) {
		struct result *r = &b->results[i];
		CTL_CELL(&t, "OP", "%s", r->op);
		CTL_CELL(&t, "BYTES", "%llu", (unsigned long long)r->bytes);
		CTL_CELL(&t, "COUNT", "%zu", samples_count(&r->took));
		report_put_time(&t, "P50", 2, " us", samples_us(&r->took, 0.5));
		report_put_time(&t, "P99", 2, " us", samples_us(&r->took, 0.99));
		report_put_time(&t, "MAX", 2, " us", samples_us(&r->took, 1));
		report_put_time(&t, "MIB/S", 0, "", mib_per_s(r));
	}
	return ctl_table_print(&t, false, err);
}

/* ---- set-up ---- */
static void on_state(void *user, bool ready, const struct cgn_err *why)
{
	bench_stop(user, ready ? NULL : why);
}

static CGN_RC open_all(struct bench *b, struct cgn_err *err)
{
	char addr[128];
	(void)snprintf(addr, sizeof addr, "unix:%s", b->uds);
	CGN_TRY(cgn_loop_new(&b->loop, err));
	cgn_loop_poll(b->loop, b->poll_us * CGN_USEC);
	cgn_timer_init(&b->patience, b->loop, on_patience);
	const struct kvclient_cfg kv = {.uds = b->uds, .timeout = PATIENCE, .on_state = on_state, .user = b};
	b->kv = kvclient_new(b->loop, &kv);
	cgn_loop_run(b->loop);
	if (b->err.code != CGN_FINE) {
		*err = b->err;
		return CGN_RC_OF(b->err.code);
	}
	const struct grpc_channel_cfg cfg = {.addr = addr, .wide = true};
	return grpc_channel_new(b->loop, &cfg, &b->channel, err);
}

static CGN_RC run_bench(const struct ctl_args *a, struct bench *b, struct cgn_err *err)
{
	b->uds = ctl_flag(a, "--uds");
	CGN_TRY(ctl_flag_u64(a, "--count", 1, 1000000, &b->count, err));
	CGN_TRY(ctl_flag_u64(a, "--poll-us", 0, 1000, &b->poll_us, err));
	CGN_TRY(ctl_flag_u64s(a, "--sizes", 1, BLOCK_MAX_BYTES, b->sizes, MAX_SIZES, &b->n_sizes, err));
	CGN_TRY(open_all(b, err));
	cgn_random(&b->key_seed, sizeof b->key_seed);
	CGN_TRY(run_calls(b, "lookup", 0, start_lookup, err));
	for (size_t i = 0; i < b->n_sizes; i++) {
		b->size = b->sizes[i];
		cgn_rc rc = run_size(b, err);
		drop_values(b);
		CGN_TRY(rc);
	}
	ctl_progress_end();
	return (a->json ? report_json : report_table)(b, err);
}

static void close_all(struct bench *b)
{
	for (size_t i = 0; i < b->n_results; i++)
		samples_fini(&b->results[i].took);
	if (b->call != NULL)
		grpc_cancel(&b->call);
	if (b->channel != NULL)
		grpc_channel_free(&b->channel);
	kvclient_free(&b->kv);
	cgn_loop_close(&b->loop);
}

CGN_RC ctl_bench_kv(const struct ctl_args *a, struct cgn_err *err)
{
	struct bench *b = CGN_NEW(struct bench);
	for (size_t i = 0; i < KEYS; i++)
		b->files[i] = -1;
	cgn_rc rc = run_bench(a, b, err);
	close_all(b);
	free(b);
	return rc;
}
