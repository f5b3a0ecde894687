/* SPDX-License-Identifier: Apache-2.0 */
/* bench evict: the cost of an operation of policy/kv/evict by the number of blocks in the tier: a use, and one
 * eviction with one insertion. Keys are a Zipf-like mix of reused keys and keys that never return. Prints one
 * JSON object; times are the best of several rounds. */
#include <stdlib.h>
#include <time.h>

#include "base/json/json.h"
#include "base/mix/mix.h"
#include "policy/kv/evict/evict.h"

#define OPS    1000000
#define ROUNDS 5

struct item {
	uint64_t key;
	struct evict_node node;
};

static uint64_t now_ns(void)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static uint64_t hash_of(struct evict_node *n)
{
	uint64_t h = CGN_CONTAINER(n, struct item, node)->key * MIX_GOLDEN;
	return (h ^ h >> 29) * 0xbf58476d1ce4e5b9U;
}

static uint64_t draw_key(uint64_t *s)
{
	return mix_lcg(s) >> 20;
}

static double time_touches(struct item *items, uint64_t n, uint64_t *s)
{
	uint64_t began = now_ns();
	for (int i = 0; i < OPS; i++)
		evict_touch(&items[draw_key(s) % n].node);
	return (double)(now_ns() - began) / OPS;
}

/* A third of the keys are recently evicted ones. */
static double time_turns(struct evict *e, uint64_t *next, uint64_t n, uint64_t *s)
{
	uint64_t began = now_ns();
	for (int i = 0; i < OPS; i++) {
		struct item *it = CGN_CONTAINER(evict_victim(e, NULL, NULL), struct item, node);
		it->key = draw_key(s) % 3 == 0 && *next > 2 * n ? *next - n - draw_key(s) % n : ++*next;
		evict_add(e, &it->node, 65536);
	}
	return (double)(now_ns() - began) / OPS;
}

static void measure_size(uint64_t n, struct json_out *o)
{
	struct evict e;
	struct item *items = calloc(n, sizeof *items);
	double touch = 1e9, turn = 1e9;
	uint64_t s = 1, next = n;
	if (items == NULL)
		abort();
	evict_init(&e, &(struct evict_cfg){.bytes = n << 16, .hash_of = hash_of});
	for (uint64_t i = 0; i < n; i++) {
		items[i].key = i + 1;
		evict_add(&e, &items[i].node, 65536);
	}
	for (int round = 0; round < ROUNDS; round++) {
		double t = time_touches(items, n, &s), u = time_turns(&e, &next, n, &s);
		touch = t < touch ? t : touch;
		turn = u < turn ? u : turn;
	}
	json_open(o, '{');
	json_key_u64(o, "blocks", n);
	json_key_f64(o, "touch_ns", touch);
	json_key_f64(o, "out_and_in_ns", turn);
	json_key_f64(o, "ghost_bytes_a_block", (double)evict_bytes(&e) / (double)n);
	json_key_u64(o, "node_bytes", sizeof(struct evict_node));
	json_close(o, '}');
	evict_fini(&e);
	free(items);
}

int main(void)
{
	static const uint64_t sizes[] = {10000, 100000, 1000000, 10000000};
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	json_open(&o, '{');
	json_key_z(&o, "bench", "evict operations");
	json_key(&o, "results");
	json_open(&o, '[');
	for (size_t i = 0; i < CGN_COUNT(sizes); i++)
		measure_size(sizes[i], &o);
	json_close(&o, ']');
	json_close(&o, '}');
	(void)printf("%s\n", cgn_buf_z(&b));
	cgn_buf_fini(&b);
	return 0;
}
