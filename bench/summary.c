/* SPDX-License-Identifier: Apache-2.0 */
/* bench summary: the set of blocks that a cluster tells its peers: bytes of a block in memory and on the wire, found blocks
 * that are not held, and the times to make, code, read, change and look up. Then the traffic while blocks come and go:
 * for a million blocks, by blocks that are replaced in a second, asked every 2 s for a minute, with the answer's head, one
 * model, and HTTP's fields. Prints one JSON object; times are the best of several rounds. */
#include <stdlib.h>
#include <time.h>

#include "base/json/json.h"
#include "base/mix/mix.h"
#include "policy/route/remote/code.h"
#include "policy/route/remote/summary.h"

#define ROUNDS     5
#define STRANGERS  20000000U
#define INTERVAL_S 2
#define SPAN_S     60
#define HTTP_BYTES 330 /* Fields of a question and an answer, and TLS records, as sent between two routers. */
#define PARTS      1024
#define ASKED      200.0 /* Kbit/s for a million blocks. */

static uint64_t now_ns(void)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static uint64_t digest_of(uint64_t block)
{
	return mix_seeded(block * MIX_GOLDEN);
}

/* The blocks |from| to |to|, which come part by part as from the index. */
static struct peer_set *set_make(uint64_t from, uint64_t to)
{
	struct peer_draft d = {0};
	uint64_t *digests = malloc((to - from) * sizeof *digests);
	size_t *at = calloc(PARTS + 1, sizeof *at);
	CGN_MUST(digests != NULL && at != NULL);
	for (uint64_t i = from; i < to; i++)
		at[(digest_of(i) >> 54) + 1]++;
	for (size_t i = 0; i < PARTS; i++)
		at[i + 1] += at[i];
	for (uint64_t i = from; i < to; i++)
		digests[at[digest_of(i) >> 54]++] = digest_of(i);
	for (size_t part = 0, i = 0; part < PARTS; part++) {
		for (; i < at[part]; i++)
			peer_draft_add(&d, peer_fingerprint(digests[i]));
		peer_draft_part(&d);
	}
	free(digests);
	free(at);
	struct peer_set *s = peer_draft_finish(&d);
	CGN_MUST(s != NULL);
	return s;
}

static bool block_is_found(const struct peer_set *s, uint64_t block)
{
	uint64_t digest = digest_of(block);
	return peer_set_match(s, 0, &digest, 1) == 1;
}

static void lookups_measure(const struct peer_set *s, uint64_t n, struct json_out *o)
{
	uint64_t found = 0, began = now_ns();
	for (uint64_t i = 0; i < STRANGERS; i++)
		found += block_is_found(s, UINT64_C(1) << 40 | i);
	json_key_f64(o, "lookup_ns", (double)(now_ns() - began) / STRANGERS);
	json_key_f64(o, "found_not_held_percent", 100.0 * (double)found / STRANGERS);
	json_key_f64(o, "expected_percent", 100.0 * (double)n / (double)(UINT64_C(1) << s->width));
	for (uint64_t i = 0; i < n; i++)
		CGN_MUST(block_is_found(s, i));
}

static void code_measure(const struct peer_set *s, struct json_out *o)
{
	const unsigned drop = PEER_WIDTH - s->width;
	const uint64_t range = UINT64_C(1) << s->width;
	uint64_t put = UINT64_MAX, get = UINT64_MAX;
	size_t bytes = 0;
	for (int i = 0; i < ROUNDS; i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
		CGN_ON_EXIT(peer_set_unref) struct peer_set *again = NULL;
		uint64_t began = now_ns();
		peer_gaps_put(s, drop, range, &b);
		uint64_t coded = now_ns();
		struct cgn_cursor c = cgn_cursor_of(cgn_buf_view(&b));
		CGN_MUST(cgn_ok(peer_gaps_get(&c, drop, range, &again, NULL)) && again->sum == s->sum);
		uint64_t ended = now_ns();
		put = coded - began < put ? coded - began : put;
		get = ended - coded < get ? ended - coded : get;
		bytes = b.n;
	}
	json_key_f64(o, "wire_bytes_a_block", (double)bytes / s->n);
	json_key_f64(o, "code_ms", (double)put / 1e6);
	json_key_f64(o, "read_ms", (double)get / 1e6);
}

static void size_measure(uint64_t n, struct json_out *o)
{
	uint64_t began = now_ns();
	CGN_ON_EXIT(peer_set_unref) struct peer_set *s = set_make(0, n);
	peer_set_narrow(s, peer_width(s->n, 0));
	json_open(o, '{');
	json_key_u64(o, "blocks", n);
	json_key_f64(o, "make_ms", (double)(now_ns() - began) / 1e6);
	json_key_f64(o, "memory_bytes_a_block", (double)(sizeof *s + s->n * sizeof s->v[0]) / (double)n);
	code_measure(s, o);
	lookups_measure(s, n, o);
	json_close(o, '}');
}

/* ---- traffic ---- */

struct side {
	struct peer_journal there;
	struct peer_known here;
	uint64_t read_ns, answers;
};

/* Ask once. Return the bytes of the answer. */
static size_t side_ask(struct side *s)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf sets = {0}, bytes = {0};
	CGN_ON_EXIT(peer_set_unref) struct peer_set *whole = NULL;
	static struct peer_summary told, got;
	struct peer_set *now = NULL;
	told = (struct peer_summary){.n_models = 1,
		.models = {{.name = CGN_STR("llama-3.3-70b"), .nodes = 32}}};
	peer_journal_ask(&s->there, s->here.generation, PEER_VERSION, &told, &whole, &sets);
	peer_summary_put(&told, whole, cgn_buf_view(&sets), &bytes);
	uint64_t began = now_ns();
	CGN_MUST(cgn_ok(peer_summary_get(cgn_buf_view(&bytes), &s->here, &got, &now, NULL)));
	s->read_ns += now_ns() - began;
	s->answers++;
	peer_set_unref(&s->here.set);
	s->here = (struct peer_known){now, got.generation, got.shift};
	return bytes.n;
}

/* Return the kbit/s while |rate| of |n| blocks are replaced in a second. */
static double churn_measure(uint64_t n, uint64_t rate, struct json_out *o)
{
	struct side s = {0};
	uint64_t bytes = 0, from = 0;
	for (int t = 0; t <= SPAN_S; t += INTERVAL_S, from += rate * INTERVAL_S) {
		struct peer_set *set = set_make(from, from + n);
		peer_journal_add(&s.there, &set, 0, PEER_VERSION, 1);
		size_t answer = side_ask(&s);
		bytes += t > 0 ? answer + HTTP_BYTES : 0;
	}
	double kbits = (double)bytes * 8 / SPAN_S / 1000;
	if (o != NULL) {
		json_open(o, '{');
		json_key_u64(o, "replaced_a_second", rate);
		json_key_f64(o, "kbit_s", kbits);
		json_key_f64(o, "bits_a_change",
			rate > 0 ? (double)bytes * 8 / (2 * (double)rate * SPAN_S) : 0);
		json_key_f64(o, "read_ms", (double)s.read_ns / (double)s.answers / 1e6);
		json_close(o, '}');
	}
	peer_journal_fini(&s.there);
	peer_set_unref(&s.here.set);
	return kbits;
}

/* The greatest rate whose traffic is as asked. */
static uint64_t churn_limit(uint64_t n)
{
	uint64_t lo = 0, hi = 65536;
	while (hi - lo > 64) {
		uint64_t mid = lo + (hi - lo) / 2;
		if (churn_measure(n, mid, NULL) <= ASKED)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

int main(void)
{
	static const uint64_t sizes[] = {100000, 1000000, 4000000},
			      rates[] = {0, 100, 500, 1000, 2000, 4000, 8000};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	json_open(&o, '{');
	json_key_open(&o, "sets", '[');
	for (size_t i = 0; i < CGN_COUNT(sizes); i++)
		size_measure(sizes[i], &o);
	json_close(&o, ']');
	json_key_open(&o, "traffic_of_a_million_blocks", '[');
	for (size_t i = 0; i < CGN_COUNT(rates); i++)
		(void)churn_measure(1000000, rates[i], &o);
	json_close(&o, ']');
	json_key_u64(&o, "replaced_a_second_at_200_kbit_s", churn_limit(1000000));
	json_close(&o, '}');
	(void)printf("%s\n", cgn_buf_z(&b));
	return 0;
}
