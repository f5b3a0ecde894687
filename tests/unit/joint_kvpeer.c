/* SPDX-License-Identifier: Apache-2.0 */
/* Stores on one loop that fetch from each other over QUIC on loopback, and dishonest peers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <xxhash.h>

#include "base/core/buf.h"
#include "base/json/json.h"
#include "joint/kv/kvpeer/kvpeer.h"
#include "loop_until.h"
#include "policy/kv/kvframe/kvframe.h"
#include "quic_certs.h"
#include "telemetry_world.h"

#define MIB   ((uint64_t)1 << 20)
#define NODES 3

struct node {
	struct kvstore *store;
	struct kvpeer *kp;
	char addr[64];
};
struct asked {
	struct kvpeer_fetch *fetch;
	struct kvstore_block *block;
	struct cgn_err why;
	unsigned calls;
};
/* A fake peer: it sends hello and holds the blocks that the test names, and the test writes its answers. */
struct liar {
	struct world *w;
	struct quic_endpoint *ep;
	char addr[64], name[16];
	struct block_key key;
	struct cgn_buf answer; /* Answer to FETCH; when empty, the liar is silent. */
	bool fin;              /* End the stream after the answer. */
	unsigned fetches;
	struct quic_stream *last;
	struct kvframe_fetch rq;
};
struct world {
	struct cgn_loop *l;
	struct node nodes[NODES];
	struct liar liars[2];
	struct asked asked[32];
	struct block_key key;
	unsigned want; /* Number that the waiting test wants to see. */
	/* Endpoint of a raw client. */
	struct quic_endpoint *raw;
	struct quic_conn *raw_conn;
	struct quic_stream *raw_stream;
	struct cgn_buf raw_got;
	bool raw_open, raw_closed, raw_conn_closed;
	uint64_t raw_code;
	cgn_nsec until;
};

/* ---- values ---- */

static struct block_key key_of(uint32_t n)
{
	char text[32];
	(void)snprintf(text, sizeof text, "block %u", n);
	return (struct block_key){.digest = digest_of(cgn_str_of(text))};
}

static uint8_t byte_at(const struct block_key *k, uint64_t i)
{
	return (uint8_t)(k->digest.b[i % DIGEST_BYTES] + i * 31 + i / 251 + i / 65521);
}

static char *value_of(const struct block_key *k, uint64_t n)
{
	char *p = malloc(n + 1);
	assert_non_null(p);
	for (uint64_t i = 0; i < n; i++)
		p[i] = (char)byte_at(k, i);
	return p;
}

static void put_of(struct kvstore *s, const struct block_key *k, uint64_t n, struct cgn_str tenant)
{
	struct kvstore_writer *w = NULL;
	struct cgn_err err = {0};
	const struct block_meta meta = {.model = CGN_STR("m"),
		.name = CGN_STR("n"),
		.tenant = tenant,
		.tokens = 16};
	char *p = value_of(k, n);
	if (!cgn_ok(kvstore_put(s, k, &meta, n, &w, &err)))
		fail_msg("%s", err.msg);
	kvstore_writer_add(w, p, n);
	assert_true(cgn_ok(kvstore_writer_commit(&w, NULL, 0, &err)));
	free(p);
}

static void put_in(struct kvstore *s, const struct block_key *k, uint64_t n)
{
	put_of(s, k, n, (struct cgn_str){0});
}

static void assert_value(const struct kvstore_block *b, const struct block_key *k, uint64_t n)
{
	uint64_t at = 0;
	assert_non_null(b);
	assert_true(kvstore_block_size(b) == n);
	while (at < n) {
		struct iovec iov[8];
		size_t n_iov = 0;
		uint64_t got = kvstore_block_iov(b, at, n - at, iov, 8, &n_iov);
		assert_true(got > 0);
		for (size_t i = 0; i < n_iov; i++) {
			const uint8_t *p = iov[i].iov_base;
			for (size_t j = 0; j < iov[i].iov_len; j++, at++)
				if (p[j] != byte_at(k, at))
					fail_msg("byte %llu is wrong", (unsigned long long)at);
		}
	}
}

/* ---- nodes ---- */

static void node_open_as(struct world *w, unsigned i, const struct kvpeer_cfg *more, uint64_t ram,
	struct tls_ctx *tls)
{
	static const char *const names[] = {"a", "b", "c"};
	struct node *n = &w->nodes[i];
	struct cgn_err err = {0};
	const struct kvstore_cfg store = {.telemetry = test_telemetry(),
		.ram_bytes = ram,
		.sites = more != NULL ? more->sites : NULL};
	if (!cgn_ok(kvstore_new(&store, &n->store, &err)))
		fail_msg("%s", err.msg);
	struct kvpeer_cfg cfg = more != NULL ? *more : (struct kvpeer_cfg){.egress_streams = 64};
	cfg.store = n->store;
	cfg.telemetry = test_telemetry();
	cfg.listen = "127.0.0.1:0";
	cfg.tls = tls;
	cfg.node_id = names[i];
	cfg.readers = 2;
	cfg.index_bytes = kvpeer_least_index(2) + 8 * MIB;
	if (!cgn_ok(kvpeer_open(w->l, &cfg, &n->kp, &err)))
		fail_msg("%s", err.msg);
	(void)snprintf(n->addr, sizeof n->addr, "127.0.0.1:%u", kvpeer_port(n->kp));
}

static void node_open(struct world *w, unsigned i)
{
	node_open_as(w, i, NULL, 256 * MIB, node_tls);
}

static void node_knows(struct world *w, unsigned from, unsigned to)
{
	static const char *const names[] = {"a", "b", "c"};
	kvpeer_member(w->nodes[from].kp, names[to], w->nodes[to].addr, "", "");
}

static void world_open(struct world *w)
{
	memset(w, 0, sizeof *w);
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
}

static void world_close(struct world *w)
{
	for (unsigned i = 0; i < CGN_COUNT(w->asked); i++) {
		kvpeer_fetch_cancel(&w->asked[i].fetch);
		kvstore_block_unref(&w->asked[i].block);
	}
	for (unsigned i = 0; i < NODES; i++)
		kvpeer_close(&w->nodes[i].kp);
	for (unsigned i = 0; i < CGN_COUNT(w->liars); i++) {
		quic_endpoint_close(&w->liars[i].ep);
		cgn_buf_fini(&w->liars[i].answer);
	}
	quic_endpoint_close(&w->raw);
	cgn_buf_fini(&w->raw_got);
	cgn_loop_free(&w->l);
	for (unsigned i = 0; i < NODES; i++)
		kvstore_free(&w->nodes[i].store);
}

static uint64_t ram_of(struct world *w, unsigned i)
{
	struct kvstore_stats st;
	kvstore_stats(w->nodes[i].store, &st);
	return st.tier[BLOCK_RAM].bytes;
}

/* ---- asking ---- */

static void on_done(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct asked *a = user;
	a->fetch = NULL;
	a->block = *take;
	*take = NULL;
	a->why = *why;
	a->calls++;
}

static void ask_as(struct world *w, unsigned node, unsigned slot, const struct block_key *k,
	const struct kvpeer_ask *ask)
{
	struct asked *a = &w->asked[slot];
	struct cgn_err err = {0};
	*a = (struct asked){.calls = 0};
	cgn_rc rc = kvpeer_fetch(w->nodes[node].kp, k, ask, on_done, a, &a->fetch, &err);
	if (!cgn_ok(rc)) {
		a->why = err;
		a->calls = 1;
	}
	assert_true(!cgn_ok(rc) || a->calls == 0); /* Never inside the call. */
}

static void node_ask(struct world *w, unsigned node, unsigned slot, const struct block_key *k)
{
	ask_as(w, node, slot, k, &(struct kvpeer_ask){.priority = 3});
}

static bool all_answered(struct world *w)
{
	for (unsigned i = 0; i < w->want; i++)
		if (w->asked[i].calls == 0)
			return false;
	return true;
}

static void wait_answers(struct world *w, unsigned n)
{
	w->want = n;
	loop_until(w->l, all_answered, w);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(w->asked[i].calls, 1);
}

static bool b_has_heard(struct world *w)
{
	struct kvpeer_where where;
	return kvpeer_has(w->nodes[1].kp, &w->key, 0, &where);
}

static bool b_has_not_heard(struct world *w)
{
	return !b_has_heard(w);
}

static bool b_knows_so_many(struct world *w)
{
	size_t ready;
	(void)kvpeer_count(w->nodes[1].kp, &ready);
	return ready == w->want;
}

static void wait_peers(struct world *w, unsigned n)
{
	w->want = n;
	loop_until(w->l, b_knows_so_many, w);
}

static void wait_heard(struct world *w, const struct block_key *k)
{
	w->key = *k;
	loop_until(w->l, b_has_heard, w);
}

/* Open a and b, where b knows a; a holds |key| of |n| bytes, and b has learned that. */
static void two_nodes(struct world *w, const struct block_key *k, uint64_t n)
{
	world_open(w);
	node_open(w, 0);
	node_open(w, 1);
	put_in(w->nodes[0].store, k, n);
	node_knows(w, 1, 0);
	wait_heard(w, k);
}

/* ---- tests: finding and fetching ---- */

static void what_one_has_the_other_gets(void **state)
{
	(void)state;
	static const uint64_t sizes[] = {0, 1, 4096, 65536, MIB, MIB + 1, 20 * MIB + 12345};
	for (size_t i = 0; i < CGN_COUNT(sizes); i++) {
		struct world w;
		struct block_key k = key_of((uint32_t)i);
		struct block_info info;
		struct kvpeer_where where;
		two_nodes(&w, &k, sizes[i]);
		assert_true(kvpeer_has(w.nodes[1].kp, &k, 0, &where));
		assert_string_equal(where.node, "a");
		assert_int_equal(where.tiers, BLOCK_TIER_BIT(BLOCK_RAM));
		node_ask(&w, 1, 0, &k);
		wait_answers(&w, 1);
		assert_value(w.asked[0].block, &k, sizes[i]);
		assert_true(cgn_str_is(kvstore_block_model(w.asked[0].block), "m") &&
			cgn_str_is(kvstore_block_name(w.asked[0].block), "n"));
		/* There is room, so the value stays. */
		assert_true(kvstore_lookup(w.nodes[1].store, &k, &info));
		assert_int_equal(info.tokens, 16);
		world_close(&w);
	}
}

static void an_unknown_block_is_a_miss_at_once(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1), other = key_of(2), later = {.digest = k.digest, .segment = 1};
	struct kvpeer_where where;
	two_nodes(&w, &k, 100);
	assert_false(kvpeer_has(w.nodes[1].kp, &other, 0, &where));
	assert_false(kvpeer_has(w.nodes[1].kp, &later, 0, &where));
	node_ask(&w, 1, 0, &other);
	assert_int_equal(w.asked[0].calls, 1); /* The call failed at once, without a fetch. */
	assert_int_equal(w.asked[0].why.code, CGN_NOT_FOUND);
	world_close(&w);
}

static void many_who_want_it_wait_for_one_fetch(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	uint64_t before = metric_count(METRIC_OF(test_telemetry(), KV_PEER_BYTES, "in"));
	two_nodes(&w, &k, 3 * MIB);
	for (unsigned i = 0; i < 20; i++)
		node_ask(&w, 1, i, &k);
	kvpeer_fetch_cancel(&w.asked[19].fetch);
	wait_answers(&w, 19);
	for (unsigned i = 0; i < 19; i++)
		assert_value(w.asked[i].block, &k, 3 * MIB);
	assert_int_equal(w.asked[19].calls, 0);
	assert_true(metric_count(METRIC_OF(test_telemetry(), KV_PEER_BYTES, "in")) - before == 3 * MIB);
	world_close(&w);
}

static void changes_are_heard(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1), k2 = key_of(2);
	two_nodes(&w, &k, 100);
	put_in(w.nodes[0].store, &k2, 100);
	wait_heard(&w, &k2);
	assert_true(kvstore_remove(w.nodes[0].store, &k));
	w.key = k;
	loop_until(w.l, b_has_not_heard, &w);
	wait_heard(&w, &k2); /* The other block stays. */
	world_close(&w);
}

static bool b_has_all(struct world *w)
{
	for (uint32_t i = 0; i < 5000; i++) {
		struct kvpeer_where where;
		struct block_key k = key_of(i);
		if (!kvpeer_has(w->nodes[1].kp, &k, 0, &where))
			return false;
	}
	return true;
}

static void a_snapshot_of_thousands_is_heard(void **state)
{
	(void)state;
	struct world w;
	world_open(&w);
	node_open(&w, 0);
	node_open(&w, 1);
	for (uint32_t i = 0; i < 5000; i++) {
		struct block_key k = key_of(i);
		put_in(w.nodes[0].store, &k, 10);
	}
	node_knows(&w, 1, 0);
	loop_until(w.l, b_has_all, &w);
	world_close(&w);
}

/* More changes at once than the store remembers: a full list is sent again, and removed blocks are
 * forgotten. */
static void a_peer_that_falls_behind_gets_a_full_list(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1), last = key_of(70000);
	two_nodes(&w, &k, 10);
	assert_true(kvstore_remove(w.nodes[0].store, &k));
	for (uint32_t i = 2; i <= 70000; i++) {
		struct block_key other = key_of(i);
		put_in(w.nodes[0].store, &other, 1);
		if (i < 69000)
			assert_true(kvstore_remove(w.nodes[0].store, &other));
	}
	wait_heard(&w, &last);
	w.key = k;
	loop_until(w.l, b_has_not_heard, &w);
	world_close(&w);
}

static void a_peer_that_went_has_nothing(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	two_nodes(&w, &k, 100);
	kvpeer_close(&w.nodes[0].kp);
	w.key = k;
	loop_until(w.l, b_has_not_heard, &w);
	node_ask(&w, 1, 0, &k);
	assert_int_equal(w.asked[0].why.code, CGN_NOT_FOUND);
	world_close(&w);
}

static void a_member_that_leaves_is_forgotten(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	two_nodes(&w, &k, 40 * MIB);
	node_ask(&w, 1, 0, &k);
	kvpeer_member_gone(w.nodes[1].kp, "a"); /* With a fetch in flight. */
	wait_answers(&w, 1);
	assert_null(w.asked[0].block);
	assert_int_equal(w.asked[0].why.code, CGN_UNAVAILABLE);
	assert_false(b_has_heard(&w));
	assert_true(ram_of(&w, 1) == 0);
	node_knows(&w, 1, 0);
	wait_heard(&w, &k);
	world_close(&w);
}

static struct pb_tree told; /* Has the texts of |peers_of|, until the next call. */

static const Cognitora__V1__KvPeersResponse *peers_of(const struct kvpeer *kp)
{
	pb_tree_fini(&told);
	pb_tree_init(&told, (size_t)1 << 20);
	Cognitora__V1__KvPeersResponse *all = PB_NEW(&told, kv_peers_response);
	kvpeer_fill(kp, &told, all);
	assert_false(told.bad);
	return all;
}

static void itself_and_known_peers_are_not_dialled(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	struct cgn_buf text = {0};
	two_nodes(&w, &k, 100);
	/* A member list that is the same on every node. */
	kvpeer_member(w.nodes[1].kp, NULL, w.nodes[1].addr, NULL, NULL);
	kvpeer_member(w.nodes[1].kp, NULL, w.nodes[0].addr, NULL, NULL);
	node_open(&w, 2);
	kvpeer_member(w.nodes[1].kp, NULL, w.nodes[2].addr, NULL, NULL);
	wait_peers(&w, 2);
	size_t ready = 0;
	while (kvpeer_count(w.nodes[1].kp, &ready) > 2)
		wait_peers(&w, 2);
	const Cognitora__V1__KvPeersResponse *all = peers_of(w.nodes[1].kp);
	for (size_t i = 0; i < all->n_peers; i++)
		cgn_buf_putz(&text, all->peers[i]->why);
	assert_non_null(strstr(cgn_buf_z(&text), "it is this node itself"));
	assert_non_null(strstr(cgn_buf_z(&text), "known under another name"));
	cgn_buf_fini(&text);
	world_close(&w);
}

static Cognitora__V1__KvPeer row;

static void take_row(const struct kvpeer *kp)
{
	const Cognitora__V1__KvPeersResponse *all = peers_of(kp);
	for (size_t i = 0; i < all->n_peers; i++)
		row = *all->peers[i];
}

static bool a_heard_a_name(struct world *w)
{
	take_row(w->nodes[0].kp);
	return row.name[0] != '\0';
}

static bool a_has_no_guest(struct world *w)
{
	struct kvpeer_overview v;
	kvpeer_overview(w->nodes[0].kp, &v);
	return v.guests == 0;
}

static void what_moved_is_told_on_both_sides(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	struct kvpeer_overview v;
	two_nodes(&w, &k, 100000);
	kvpeer_member(w.nodes[0].kp, NULL, w.nodes[1].addr, NULL, NULL);
	node_ask(&w, 1, 0, &k);
	wait_answers(&w, 1);
	take_row(w.nodes[1].kp);
	assert_string_equal(row.id, "a");
	assert_string_equal(row.name, "a");
	assert_string_equal(row.why, "");
	assert_string_equal(row.certificate, "node-1");
	assert_true(row.fetched == 1 && row.fetched_bytes == 100000 && row.served == 0 && row.blocks == 1);
	loop_until(w.l, a_heard_a_name, &w); /* The peer is known by its address until then. */
	assert_string_equal(row.id, w.nodes[1].addr);
	assert_true(row.served == 1 && row.served_bytes == 100000 && row.fetched == 0);
	kvpeer_overview(w.nodes[0].kp, &v);
	assert_true(v.guests == 1 && v.quic.accepted == 1 && v.refusal.code == CGN_FINE && v.owed_bytes == 0);
	/* The member stays when the incoming connection ends. */
	kvpeer_close(&w.nodes[1].kp);
	loop_until(w.l, a_has_no_guest, &w);
	take_row(w.nodes[0].kp);
	assert_true(row.served == 1 && row.served_bytes == 100000);
	world_close(&w);
}

static void a_stranger_is_refused_both_ways(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	struct kvpeer_where where;
	world_open(&w);
	node_open(&w, 0);
	node_open(&w, 1);
	node_open_as(&w, 2, NULL, 64 * MIB, stranger_tls);
	put_in(w.nodes[0].store, &k, 100);
	put_in(w.nodes[2].store, &k, 100);
	node_knows(&w, 1, 2);
	node_knows(&w, 2, 0);
	node_knows(&w, 1, 0);
	wait_heard(&w, &k);
	for (unsigned i = 0; i < 300; i++) /* Long enough for the connection to arrive, if it could. */
		wait_peers(&w, 1);
	assert_false(kvpeer_has(w.nodes[2].kp, &k, 0, &where));
	world_close(&w);
}

/* ---- liars ---- */

static void liar_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	struct liar *liar = user;
	struct kvframe_in in;
	struct kvframe f;
	struct cgn_buf b = {0};
	struct cgn_str rest = {(const char *)p, n};
	bool got = false;
	(void)fin;
	kvframe_in_init(&in);
	/* The frames are small and come in one piece. */
	assert_true(n == 0 || cgn_ok(kvframe_next(&in, &rest, &f, &got, NULL)));
	if (got && f.type == KVFRAME_SUBSCRIBE) {
		const struct kvframe_hold hold = {kvframe_short(&liar->key), BLOCK_TIER_BIT(BLOCK_RAM)};
		kvframe_put_who(&b, KVFRAME_HELLO,
			&(struct kvframe_who){.instance = (uintptr_t)liar, .node = cgn_str_of(liar->name)});
		kvframe_put_holds(&b, &(struct kvframe_holds){.seq = 1, .reset = true, .synced = true}, &hold,
			1);
		quic_send(s, &(struct iovec){b.p, b.n}, 1, false, NULL, NULL);
	}
	if (got && f.type == KVFRAME_FETCH) {
		assert_true(cgn_ok(kvframe_read_fetch(f.payload, &liar->rq, NULL)));
		liar->fetches++;
		liar->last = s;
		if (liar->answer.n > 0)
			quic_send(s, &(struct iovec){liar->answer.p, liar->answer.n}, 1, liar->fin, NULL,
				NULL);
	}
	cgn_buf_fini(&b);
	kvframe_in_fini(&in);
}

static void liar_stream_closed(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	struct liar *liar = user;
	(void)why;
	(void)code;
	if (liar->last == s)
		liar->last = NULL;
}

static const struct quic_stream_ops liar_stream_ops = {.on_data = liar_data, .on_close = liar_stream_closed};

static void liar_stream(struct quic_conn *c, void *user, struct quic_stream *s)
{
	(void)c;
	quic_stream_take(s, &liar_stream_ops, user);
}

static void liar_closed(struct quic_conn *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	(void)why;
}

static const struct quic_conn_ops liar_ops = {.on_stream = liar_stream, .on_close = liar_closed};

static void liar_accept(void *user, struct quic_conn *c)
{
	quic_conn_take(c, &liar_ops, user);
}

static struct liar *liar_open(struct world *w, unsigned i, const struct block_key *k, const char *rack)
{
	struct liar *liar = &w->liars[i];
	const struct quic_endpoint_cfg cfg = {.addr = "127.0.0.1:0", .tls = second_tls, .alpn = KVFRAME_ALPN};
	*liar = (struct liar){.w = w, .key = *k, .fin = true};
	(void)snprintf(liar->name, sizeof liar->name, "liar %u", i);
	assert_true(cgn_ok(quic_endpoint_new(w->l, &cfg, liar_accept, liar, &liar->ep, NULL)));
	(void)snprintf(liar->addr, sizeof liar->addr, "127.0.0.1:%u", quic_endpoint_port(liar->ep));
	kvpeer_member(w->nodes[1].kp, liar->name, liar->addr, rack, "");
	return liar;
}

/* Answer with |n| bytes and a claimed size |size|; the checksum is right for the true value of |size|
 * bytes. */
static void liar_says(struct liar *liar, uint64_t size, uint64_t offset, uint64_t n)
{
	char *p = value_of(&liar->key, size);
	liar->answer.n = 0;
	kvframe_put_answer(&liar->answer,
		&(struct kvframe_answer){.status = KVFRAME_OK,
			.size = size,
			.checksum = XXH3_64bits(p, size),
			.offset = offset,
			.length = size - offset,
			.model = CGN_STR("m")});
	cgn_buf_add(&liar->answer, p + offset, n);
	free(p);
}

/* Open b in rack r with one liar in the same rack, which is therefore asked first, and optionally a, which is
 * honest and further away. */
static void with_patience(struct world *w, const struct block_key *k, uint64_t n, bool honest,
	cgn_nsec least_patience)
{
	const struct kvpeer_cfg in_rack = {.rack = "r",
		.egress_streams = 64,
		.least_patience = least_patience};
	world_open(w);
	node_open(w, 0);
	node_open_as(w, 1, &in_rack, 256 * MIB, node_tls);
	(void)liar_open(w, 0, k, "r");
	if (honest) {
		put_in(w->nodes[0].store, k, n);
		node_knows(w, 1, 0);
	}
	wait_peers(w, honest ? 2 : 1);
	wait_heard(w, k);
	for (unsigned i = 0; i < 60; i++) /* Both peers have reported their blocks. */
		wait_heard(w, k);
}

static void with_liar(struct world *w, const struct block_key *k, uint64_t n, bool honest)
{
	with_patience(w, k, n, honest, 0);
}

static void a_wrong_byte_is_never_taken(void **state)
{
	(void)state;
	for (unsigned honest = 0; honest < 2; honest++) {
		struct world w;
		struct block_key k = key_of(1);
		struct block_info info;
		uint64_t before = metric_count(METRIC_ONE(test_telemetry(), KV_PEER_CORRUPT));
		with_liar(&w, &k, 100000, honest);
		liar_says(&w.liars[0], 100000, 0, 100000);
		w.liars[0].answer.p[w.liars[0].answer.n - 777] ^= 0x10;
		node_ask(&w, 1, 0, &k);
		wait_answers(&w, 1);
		assert_int_equal(w.liars[0].fetches, 1);
		assert_true(metric_count(METRIC_ONE(test_telemetry(), KV_PEER_CORRUPT)) == before + 1);
		if (honest) {
			assert_value(w.asked[0].block, &k, 100000); /* The next peer had the block. */
		} else {
			assert_null(w.asked[0].block);
			assert_int_equal(w.asked[0].why.code, CGN_STORAGE);
			assert_false(kvstore_lookup(w.nodes[1].store, &k, &info));
			assert_true(ram_of(&w, 1) == 0);
		}
		world_close(&w);
	}
}

static void all_whose_bytes_are_in_it_may_be_wrong(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	uint64_t corrupt = 0;
	with_liar(&w, &k, 3 * MIB, true);
	liar_says(&w.liars[0], 3 * MIB, 0, 2 * MIB);
	w.liars[0].answer.p[w.liars[0].answer.n - 1] ^= 1;
	node_ask(&w, 1, 0, &k); /* Two thirds come from the liar, the rest from a. */
	wait_answers(&w, 1);
	assert_null(w.asked[0].block);
	assert_int_equal(w.asked[0].why.code, CGN_STORAGE);
	const Cognitora__V1__KvPeersResponse *all = peers_of(w.nodes[1].kp);
	for (size_t i = 0; i < all->n_peers; i++)
		corrupt += all->peers[i]->corrupt;
	assert_true(corrupt == 2);
	assert_true(ram_of(&w, 1) == 0);
	world_close(&w);
}

static void a_large_wrong_value_is_not_taken_either(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	with_liar(&w, &k, 5 * MIB, true);
	liar_says(&w.liars[0], 5 * MIB, 0, 5 * MIB);
	w.liars[0].answer.p[w.liars[0].answer.n - 1] ^= 1;
	node_ask(&w, 1, 0, &k); /* The checksum is computed on the pool. */
	wait_answers(&w, 1);
	assert_value(w.asked[0].block, &k, 5 * MIB);
	assert_true(ram_of(&w, 1) < 6 * MIB);
	world_close(&w);
}

static void an_answer_that_makes_no_sense_is_a_failure(void **state)
{
	(void)state;
	static const char junk[] = "\x02\x00\x00\x00\xff\xff\xff\xff";
	for (unsigned i = 0; i < 7; i++) {
		struct world w;
		struct block_key k = key_of(1);
		with_liar(&w, &k, 1000, true);
		struct liar *liar = &w.liars[0];
		if (i == 0)
			cgn_buf_add(&liar->answer, junk, 8); /* Not a frame. */
		if (i == 1)
			liar_says(liar, 1000, 1, 999); /* Other bytes than the requested ones. */
		if (i == 2)
			liar_says(liar, 1000, 0, 999); /* A byte too few. */
		if (i == 3)
			kvframe_put_answer(&liar->answer, &(struct kvframe_answer){.status = KVFRAME_FAILED});
		if (i == 4) /* More than a block can have. */
			kvframe_put_answer(&liar->answer,
				&(struct kvframe_answer){.size = BLOCK_MAX_BYTES + 1,
					.length = BLOCK_MAX_BYTES + 1});
		/* No answer. */
		if (i == 5)
			kvframe_put_who(&liar->answer, KVFRAME_HELLO, &(struct kvframe_who){.instance = 1});
		if (i == 6)
			cgn_buf_add(&liar->answer, "\x02", 1); /* The answer ends within its head. */
		node_ask(&w, 1, 0, &k);
		wait_answers(&w, 1);
		assert_int_equal(liar->fetches, 1);
		assert_value(w.asked[0].block, &k, 1000);
		world_close(&w);
	}
}

static void a_silent_peer_is_not_waited_for(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	with_liar(&w, &k, 2 * MIB, true);
	node_ask(&w, 1, 0, &k);
	wait_answers(&w, 1);
	/* The liar is asked first, and again when this machine lets the honest peer wait. */
	assert_true(w.liars[0].fetches >= 1);
	assert_value(w.asked[0].block, &k, 2 * MIB);
	world_close(&w);
}

/* When a peer stops in the middle, the next peer continues there: the received bytes are not requested
 * again. */
static void a_broken_fetch_continues_at_the_next_peer(void **state)
{
	(void)state;
	for (unsigned dies = 0; dies < 2; dies++) {
		struct world w;
		struct block_key k = key_of(1);
		/* The liar ends the stream too early, or falls silent. A machine that stands still while the
		 * liar's 2 MiB come is not mistaken for a silent liar. */
		with_patience(&w, &k, 3 * MIB, true, dies ? 60 * CGN_SEC : CGN_SEC);
		liar_says(&w.liars[0], 3 * MIB, 0, 2 * MIB);
		w.liars[0].fin = dies;
		uint64_t before = metric_count(METRIC_OF(test_telemetry(), KV_PEER_BYTES, "out"));
		node_ask(&w, 1, 0, &k);
		wait_answers(&w, 1);
		assert_value(w.asked[0].block, &k, 3 * MIB);
		assert_true(metric_count(METRIC_OF(test_telemetry(), KV_PEER_BYTES, "out")) - before == MIB);
		world_close(&w);
	}
}

static bool liar_was_asked(struct world *w)
{
	return w->liars[0].fetches >= w->want;
}

static bool any_liar_was_asked(struct world *w)
{
	return w->liars[0].last != NULL || w->liars[1].last != NULL;
}

static bool liar_was_asked_for_the_rest(struct world *w)
{
	return w->liars[w->want].last != NULL && w->liars[w->want].rq.offset > 0;
}

static bool liar_was_let_go(struct world *w)
{
	return w->liars[w->want].last == NULL;
}

static void liar_sends(struct liar *liar, struct cgn_str bytes, bool fin)
{
	assert_non_null(liar->last);
	quic_send(liar->last, &(struct iovec){(void *)(uintptr_t)bytes.p, bytes.n}, 1, fin, NULL, NULL);
}

/* Send an answer, from |offset| on, now. */
static void liar_answers(struct liar *liar, uint64_t size, uint64_t offset, uint64_t n, bool fin)
{
	liar_says(liar, size, offset, n);
	liar_sends(liar, cgn_buf_view(&liar->answer), fin);
	liar->answer.n = 0;
}

/* A peer falls silent, another one is asked for the rest, and then the first one sends a little more and breaks
 * off: what both of them sent counts once. */
static void what_two_peers_sent_counts_once(void **state)
{
	enum { SIZE = 300000, FIRST = 100000, MORE = 100 };
	struct world w;
	struct block_key k = key_of(1);
	char *value = value_of(&k, SIZE);
	(void)state;
	with_patience(&w, &k, 0, false, 200 * CGN_MSEC);
	(void)liar_open(&w, 1, &k, "r");
	wait_peers(&w, 2);
	node_ask(&w, 1, 0, &k);
	loop_until(w.l, any_liar_was_asked, &w);
	unsigned one = w.liars[0].last != NULL ? 0 : 1, other = 1 - one;
	liar_answers(&w.liars[one], SIZE, 0, FIRST, false);
	w.want = other;
	loop_until(w.l, liar_was_asked_for_the_rest, &w);
	assert_int_equal(w.liars[other].rq.offset, FIRST);
	liar_sends(&w.liars[one], (struct cgn_str){value + FIRST, MORE}, true);
	w.want = one;
	loop_until(w.l, liar_was_let_go, &w);
	liar_answers(&w.liars[other], SIZE, FIRST, SIZE - FIRST, true);
	wait_answers(&w, 1);
	assert_value(w.asked[0].block, &k, SIZE);
	free(value);
	world_close(&w);
}

/* A fetch whose peer is lost asks the next peer at once, however patient it is. */
static void a_lost_peer_is_not_waited_for(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		bool honest = i % 2 == 1, leaves = i / 2 == 1;
		struct world w;
		struct block_key k = key_of(1);
		with_patience(&w, &k, 1000, honest, 3600 * CGN_SEC);
		node_ask(&w, 1, 0, &k);
		w.want = 1;
		loop_until(w.l, liar_was_asked, &w);
		if (leaves)
			kvpeer_member_gone(w.nodes[1].kp, w.liars[0].name);
		else
			quic_endpoint_close(&w.liars[0].ep);
		wait_answers(&w, 1);
		if (honest)
			assert_value(w.asked[0].block, &k, 1000);
		else
			assert_int_equal(w.asked[0].why.code, CGN_UNAVAILABLE);
		world_close(&w);
	}
}

static void another_value_of_the_same_name_is_not_mixed_in(void **state)
{
	(void)state;
	for (unsigned longer = 0; longer < 2; longer++) {
		struct world w;
		struct block_key k = key_of(1);
		struct kvframe_answer other = {.status = KVFRAME_OK,
			.size = (3 + longer) * MIB,
			.checksum = 1234,
			.length = (3 + longer) * MIB,
			.model = CGN_STR("m")};
		uint64_t corrupt = metric_count(METRIC_ONE(test_telemetry(), KV_PEER_CORRUPT));
		char *value = value_of(&k, 2 * MIB);
		with_liar(&w, &k, 3 * MIB, true); /* The value at a has 3 MiB. */
		kvframe_put_answer(&w.liars[0].answer, &other);
		cgn_buf_add(&w.liars[0].answer, value, 2 * MIB);
		node_ask(&w, 1, 0, &k);
		wait_answers(&w, 1);
		assert_null(w.asked[0].block); /* Neither value is whole: a clean miss, and no damage. */
		assert_true(metric_count(METRIC_ONE(test_telemetry(), KV_PEER_CORRUPT)) == corrupt);
		assert_true(ram_of(&w, 1) == 0);
		free(value);
		world_close(&w);
	}
}

static void no_fetch_exceeds_its_budget(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	with_liar(&w, &k, 100, false);
	ask_as(&w, 1, 0, &k, &(struct kvpeer_ask){.budget_ms = 120});
	ask_as(&w, 1, 1, &k, &(struct kvpeer_ask){.budget_ms = 60});
	wait_answers(&w, 2);
	assert_int_equal(w.asked[0].why.code, CGN_DEADLINE);
	assert_int_equal(w.asked[1].why.code, CGN_DEADLINE);
	assert_true(w.liars[0].rq.budget_ms > 0 && w.liars[0].rq.budget_ms <= 120);
	assert_true(kvpeer_is_idle(w.nodes[1].kp));
	world_close(&w);
}

/* The callback |done| cancels the last other fetch and starts a new one. */
static void on_done_then(void *user, struct kvstore_block **take, const struct cgn_err *why)
{
	struct world *w = user;
	on_done(&w->asked[0], take, why);
	kvpeer_fetch_cancel(&w->asked[1].fetch);
	node_ask(w, 1, 2, &w->key);
}

static void a_callback_may_do_anything(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	with_liar(&w, &k, 100, false);
	ask_as(&w, 1, 1, &k, &(struct kvpeer_ask){.budget_ms = 5000});
	assert_true(cgn_ok(kvpeer_fetch(w.nodes[1].kp, &k, &(struct kvpeer_ask){.budget_ms = 60},
		on_done_then, &w, &w.asked[0].fetch, NULL)));
	wait_answers(&w, 1);
	assert_int_equal(w.asked[0].why.code, CGN_DEADLINE);
	assert_int_equal(w.asked[1].calls, 0);
	kvpeer_fetch_cancel(&w.asked[2].fetch);
	assert_true(kvpeer_is_idle(w.nodes[1].kp));
	world_close(&w);
}

static bool liar_is_left(struct world *w)
{
	return w->liars[0].last == NULL;
}

static void a_cancelled_fetch_has_no_callback(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	with_liar(&w, &k, 100, false);
	liar_says(&w.liars[0], 4 * MIB, 0, 2 * MIB);
	w.liars[0].fin = false;
	node_ask(&w, 1, 0, &k);
	w.want = 1;
	loop_until(w.l, liar_was_asked, &w);
	kvpeer_fetch_cancel(&w.asked[0].fetch);
	assert_true(kvpeer_is_idle(w.nodes[1].kp));
	loop_until(w.l, liar_is_left, &w); /* The liar receives the cancellation. */
	assert_int_equal(w.asked[0].calls, 0);
	assert_true(ram_of(&w, 1) == 0); /* The reserved memory is free. */
	world_close(&w);
}

static void a_busy_peer_is_left_for_another(void **state)
{
	(void)state;
	for (unsigned honest = 0; honest < 2; honest++) {
		struct world w;
		struct block_key k = key_of(1);
		with_liar(&w, &k, 100, honest);
		kvframe_put_answer(&w.liars[0].answer,
			&(struct kvframe_answer){.status = KVFRAME_BUSY, .wait_ms = 4000});
		node_ask(&w, 1, 0, &k);
		wait_answers(&w, 1);
		assert_int_equal(w.liars[0].fetches, 1);
		if (honest)
			assert_value(w.asked[0].block, &k, 100);
		else
			assert_int_equal(w.asked[0].why.code, CGN_OVERLOADED);
		if (honest) { /* For a while, this peer is not asked first. */
			assert_true(kvstore_remove(w.nodes[1].store, &k));
			kvstore_block_unref(&w.asked[0].block);
			node_ask(&w, 1, 0, &k);
			wait_answers(&w, 1);
			assert_int_equal(w.liars[0].fetches, 1);
		}
		world_close(&w);
	}
}

static void a_peer_that_lost_the_block_is_believed(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	with_liar(&w, &k, 100, false);
	kvframe_put_answer(&w.liars[0].answer, &(struct kvframe_answer){.status = KVFRAME_NOT_FOUND});
	node_ask(&w, 1, 0, &k);
	wait_answers(&w, 1);
	assert_int_equal(w.asked[0].why.code, CGN_NOT_FOUND);
	assert_false(b_has_heard(&w));
	node_ask(&w, 1, 0, &k);
	assert_int_equal(w.asked[0].calls, 1);
	assert_int_equal(w.liars[0].fetches, 1);
	world_close(&w);
}

static void what_is_computed_faster_is_not_fetched(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	two_nodes(&w, &k, 50 * MIB);
	ask_as(&w, 1, 0, &k, &(struct kvpeer_ask){.tokens = 16, .ms_per_token = 0.01});
	wait_answers(&w, 1);
	assert_null(w.asked[0].block);
	assert_int_equal(w.asked[0].why.code, CGN_NOT_FOUND);
	assert_non_null(strstr(w.asked[0].why.msg, "recomputing is faster"));
	ask_as(&w, 1, 0, &k, &(struct kvpeer_ask){.tokens = 160000, .ms_per_token = 1});
	wait_answers(&w, 1);
	assert_value(w.asked[0].block, &k, 50 * MIB);
	world_close(&w);
}

/* ---- admission to RAM, and serving ---- */

static void what_has_no_room_is_handed_over_once(void **state)
{
	(void)state;
	struct world w;
	struct block_info info;
	struct block_key k = key_of(1000);
	world_open(&w);
	node_open(&w, 0);
	node_open_as(&w, 1, NULL, 16 * MIB, node_tls);
	put_in(w.nodes[0].store, &k, 2 * MIB);
	for (uint32_t i = 0; i < 15; i++) {
		struct block_key other = key_of(i);
		put_in(w.nodes[1].store, &other, MIB);
	}
	node_knows(&w, 1, 0);
	wait_heard(&w, &k);
	node_ask(&w, 1, 0, &k);
	wait_answers(&w, 1);
	assert_value(w.asked[0].block, &k, 2 * MIB);
	assert_false(kvstore_lookup(w.nodes[1].store, &k, &info));
	kvstore_block_unref(&w.asked[0].block);
	for (uint32_t i = 20; i < 24; i++) { /* Full again. */
		struct block_key other = key_of(i);
		put_in(w.nodes[1].store, &other, MIB);
	}
	node_ask(&w, 1, 0, &k); /* The second recent fetch: now the block stays. */
	wait_answers(&w, 1);
	assert_value(w.asked[0].block, &k, 2 * MIB);
	assert_true(kvstore_lookup(w.nodes[1].store, &k, &info));
	world_close(&w);
}

static void what_is_put_meanwhile_counts(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	two_nodes(&w, &k, 4 * MIB);
	node_ask(&w, 1, 0, &k);
	put_in(w.nodes[1].store, &k, 10); /* A client of this node puts the block before the fetch ends. */
	wait_answers(&w, 1);
	assert_value(w.asked[0].block, &k, 10);
	world_close(&w);
}

static void so_many_are_served_at_once(void **state)
{
	(void)state;
	struct world w;
	static const struct kvpeer_cfg one = {.egress_streams = 1};
	struct block_key a = key_of(1), b = key_of(2);
	uint64_t before = metric_count(METRIC_OF(test_telemetry(), KV_PEER_REFUSED, "busy"));
	world_open(&w);
	node_open_as(&w, 0, &one, 256 * MIB, node_tls);
	node_open(&w, 1);
	put_in(w.nodes[0].store, &a, 30 * MIB);
	put_in(w.nodes[0].store, &b, 30 * MIB);
	node_knows(&w, 1, 0);
	wait_heard(&w, &a);
	wait_heard(&w, &b);
	node_ask(&w, 1, 0, &a);
	node_ask(&w, 1, 1, &b);
	wait_answers(&w, 2);
	assert_true((w.asked[0].block != NULL) != (w.asked[1].block != NULL));
	assert_true(metric_count(METRIC_OF(test_telemetry(), KV_PEER_REFUSED, "busy")) == before + 1);
	world_close(&w);
}

static void what_could_not_be_read_is_not_owed(void **state)
{
	(void)state;
	struct world w;
	static const struct kvpeer_cfg slow = {.egress_streams = 64, .egress_bytes_per_second = 65536};
	struct block_key bad = key_of(1), good = key_of(2);
	struct iovec iov;
	size_t n = 0;
	world_open(&w);
	node_open_as(&w, 0, &slow, 256 * MIB, node_tls);
	node_open(&w, 1);
	put_in(w.nodes[0].store, &bad, 4 * MIB); /* Longer at that rate than any timeout. */
	put_in(w.nodes[0].store, &good, 100);
	struct kvstore_block *b = kvstore_get_ram(w.nodes[0].store, &bad, false);
	assert_true(kvstore_block_iov(b, 0, 1, &iov, 1, &n) == 1);
	*(uint8_t *)iov.iov_base ^= 1;
	kvstore_block_unref(&b);
	node_knows(&w, 1, 0);
	wait_heard(&w, &bad);
	wait_heard(&w, &good);
	node_ask(&w, 1, 0, &bad);
	wait_answers(&w, 1);
	assert_null(w.asked[0].block);
	node_ask(&w, 1, 0, &good);
	wait_answers(&w, 1);
	assert_value(w.asked[0].block, &good, 100);
	world_close(&w);
}

static bool a_owes(struct world *w)
{
	struct kvpeer_overview v;
	kvpeer_overview(w->nodes[0].kp, &v);
	return v.owed_bytes > 0;
}

static bool a_owes_nothing(struct world *w)
{
	return !a_owes(w);
}

static void what_is_not_wanted_any_more_is_not_owed(void **state)
{
	(void)state;
	struct world w;
	static const struct kvpeer_cfg slow = {.egress_streams = 64, .egress_bytes_per_second = 65536};
	struct block_key k = key_of(1);
	world_open(&w);
	node_open_as(&w, 0, &slow, 256 * MIB, node_tls);
	node_open(&w, 1);
	put_in(w.nodes[0].store, &k, 4 * MIB);
	node_knows(&w, 1, 0);
	wait_heard(&w, &k);
	node_ask(&w, 1, 0, &k);
	loop_until(w.l, a_owes, &w);
	kvpeer_fetch_cancel(&w.asked[0].fetch);
	loop_until(w.l, a_owes_nothing, &w);
	assert_true(kvpeer_is_idle(w.nodes[0].kp));
	world_close(&w);
}

static void the_end_leaves_nothing_behind(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	two_nodes(&w, &k, 60 * MIB);
	node_ask(&w, 1, 0, &k);
	kvpeer_drain(w.nodes[1].kp);
	node_ask(&w, 1, 1, &k);
	assert_int_equal(w.asked[1].why.code, CGN_UNAVAILABLE);
	kvpeer_close(&w.nodes[1].kp); /* Close during the fetch. */
	assert_int_equal(w.asked[0].calls, 1);
	assert_int_equal(w.asked[0].why.code, CGN_CANCELLED);
	world_close(&w);
}

/* ---- foreign bytes ---- */

static void raw_opened(struct quic_conn *c, void *user)
{
	(void)c;
	((struct world *)user)->raw_open = true;
}

static void raw_conn_closed(struct quic_conn *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)why;
	((struct world *)user)->raw_conn_closed = true;
}

static const struct quic_conn_ops raw_conn_ops = {.on_open = raw_opened, .on_close = raw_conn_closed};

static void raw_data(struct quic_stream *s, void *user, const uint8_t *p, size_t n, bool fin)
{
	struct world *w = user;
	(void)s;
	(void)fin;
	cgn_buf_add(&w->raw_got, p, n);
}

static void raw_closed(struct quic_stream *s, void *user, const struct cgn_err *why, uint64_t code)
{
	struct world *w = user;
	(void)s;
	(void)why;
	w->raw_closed = true;
	w->raw_code = code;
}

static const struct quic_stream_ops raw_ops = {.on_data = raw_data, .on_close = raw_closed};

static bool raw_is_open(struct world *w)
{
	return w->raw_open;
}

static bool raw_is_closed(struct world *w)
{
	return w->raw_closed;
}

static void raw_say(struct world *w, const struct cgn_buf *b, bool fin)
{
	w->raw_closed = false;
	w->raw_got.n = 0;
	assert_true(cgn_ok(quic_stream_open(w->raw_conn, &raw_ops, w, &w->raw_stream, NULL)));
	quic_send(w->raw_stream, &(struct iovec){b->p, b->n}, 1, fin, NULL, NULL);
	loop_until(w->l, raw_is_closed, w);
}

static void raw_connect(struct world *w, const char *addr)
{
	const struct quic_endpoint_cfg cfg = {.addr = "127.0.0.1:0", .tls = second_tls, .alpn = KVFRAME_ALPN};
	assert_true(cgn_ok(quic_endpoint_new(w->l, &cfg, NULL, NULL, &w->raw, NULL)));
	assert_true(cgn_ok(quic_connect(w->raw, addr, NULL, &raw_conn_ops, w, &w->raw_conn, NULL)));
	loop_until(w->l, raw_is_open, w);
}

static void raw_world(struct world *w, const struct block_key *k)
{
	world_open(w);
	node_open(w, 0);
	put_in(w->nodes[0].store, k, 1000);
	raw_connect(w, w->nodes[0].addr);
}

static void what_is_not_understood_is_ended(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1);
	struct cgn_buf b = {0};
	raw_world(&w, &k);
	cgn_buf_putz(&b, "GET / HTTP/1.1\r\n\r\n");
	raw_say(&w, &b, true);
	assert_int_equal(w.raw_code, 1);
	b.n = 0;
	/* An answer without a request. */
	kvframe_put_answer(&b, &(struct kvframe_answer){.status = KVFRAME_OK});
	raw_say(&w, &b, true);
	assert_int_equal(w.raw_code, 1);
	b.n = 0;
	kvframe_put_fetch(&b, &(struct kvframe_fetch){.key = k});
	b.n -= 1; /* Cut short. */
	raw_say(&w, &b, true);
	assert_int_equal(w.raw_code, 1);
	assert_true(kvpeer_is_idle(w.nodes[0].kp));
	cgn_buf_fini(&b);
	world_close(&w);
}

static enum kvframe_status raw_fetch(struct world *w, const struct block_key *k, uint64_t offset,
	uint64_t length, struct kvframe_answer *a)
{
	struct cgn_buf b = {0};
	struct kvframe_in in;
	struct kvframe f;
	bool got = false;
	kvframe_put_fetch(&b, &(struct kvframe_fetch){.key = *k, .offset = offset, .length = length});
	raw_say(w, &b, true);
	struct cgn_str rest = cgn_buf_view(&w->raw_got);
	kvframe_in_init(&in);
	assert_true(cgn_ok(kvframe_next(&in, &rest, &f, &got, NULL)) && got && f.type == KVFRAME_ANSWER);
	assert_true(cgn_ok(kvframe_read_answer(f.payload, a, NULL)));
	assert_true(rest.n == a->length);
	for (size_t i = 0; i < rest.n; i++)
		assert_int_equal((uint8_t)rest.p[i], byte_at(k, offset + i));
	a->model = a->name = (struct cgn_str){NULL, 0};
	kvframe_in_fini(&in);
	cgn_buf_fini(&b);
	return a->status;
}

static void parts_of_a_value_are_served(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1), other = key_of(2);
	struct kvframe_answer a;
	raw_world(&w, &k);
	assert_int_equal(raw_fetch(&w, &k, 0, 0, &a), KVFRAME_OK);
	assert_true(a.size == 1000 && a.length == 1000);
	assert_int_equal(raw_fetch(&w, &k, 10, 20, &a), KVFRAME_OK);
	assert_true(a.size == 1000 && a.offset == 10 && a.length == 20);
	assert_int_equal(raw_fetch(&w, &k, 1000, 0, &a), KVFRAME_OK);
	assert_true(a.length == 0);
	assert_int_equal(raw_fetch(&w, &k, 1001, 0, &a), KVFRAME_REFUSED);
	assert_int_equal(raw_fetch(&w, &k, 1, 1000, &a), KVFRAME_REFUSED);
	assert_int_equal(raw_fetch(&w, &k, 1, UINT64_MAX, &a), KVFRAME_REFUSED);
	assert_int_equal(raw_fetch(&w, &other, 0, 0, &a), KVFRAME_NOT_FOUND);
	kvpeer_drain(w.nodes[0].kp);
	assert_int_equal(raw_fetch(&w, &k, 0, 0, &a), KVFRAME_BUSY);
	world_close(&w);
}

/* A store of another site asks for two blocks whose keys it guessed: one may go there, one may not. */
static void what_must_stay_is_not_sent_to_other_sites(void **state)
{
	static const char *const acme[] = {"acme"}, *const any[] = {"*"};
	static const struct kvsites sites = {.n = 1, .v = {{"far", acme, any, 1, 1}}};
	const struct kvpeer_site_cfg far = {.listen = "127.0.0.1:0", .tls = node_tls};
	const struct kvpeer_cfg cfg = {.egress_streams = 64, .sites = &sites, .site_cfgs = &far};
	struct kvpeer_site_view site;
	struct kvframe_answer a;
	struct block_key may = key_of(1), stays = key_of(2);
	struct world w;
	char addr[64];
	(void)state;
	world_open(&w);
	node_open_as(&w, 0, &cfg, 256 * MIB, node_tls);
	put_of(w.nodes[0].store, &may, 1000, CGN_STR("acme"));
	put_of(w.nodes[0].store, &stays, 1000, CGN_STR("other"));
	kvpeer_site(w.nodes[0].kp, 0, &site);
	(void)snprintf(addr, sizeof addr, "127.0.0.1:%u", site.port);
	raw_connect(&w, addr);
	assert_int_equal(raw_fetch(&w, &may, 0, 0, &a), KVFRAME_OK);
	assert_int_equal(raw_fetch(&w, &stays, 0, 0, &a), KVFRAME_NOT_FOUND);
	world_close(&w);
}

static bool two_seconds_passed(struct world *w)
{
	return cgn_loop_now(w->l) > w->until;
}

/* The client ends its side late: the refusal is not replaced by a reset. */
static void a_refused_client_is_not_reset(void **state)
{
	(void)state;
	struct world w;
	struct block_key k = key_of(1), other = key_of(2);
	struct cgn_buf b = {0};
	raw_world(&w, &k);
	kvframe_put_fetch(&b, &(struct kvframe_fetch){.key = other});
	assert_true(cgn_ok(quic_stream_open(w.raw_conn, &raw_ops, &w, &w.raw_stream, NULL)));
	quic_send(w.raw_stream, &(struct iovec){b.p, b.n}, 1, false, NULL, NULL);
	w.until = cgn_loop_now(w.l) + 2 * CGN_SEC;
	loop_until(w.l, two_seconds_passed, &w);
	assert_true(w.raw_got.n > 0 && !w.raw_closed);
	quic_send(w.raw_stream, NULL, 0, true, NULL, NULL);
	loop_until(w.l, raw_is_closed, &w);
	assert_int_equal(w.raw_code, 0);
	cgn_buf_fini(&b);
	world_close(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_one_has_the_other_gets),
		cmocka_unit_test(an_unknown_block_is_a_miss_at_once),
		cmocka_unit_test(many_who_want_it_wait_for_one_fetch),
		cmocka_unit_test(changes_are_heard),
		cmocka_unit_test(a_snapshot_of_thousands_is_heard),
		cmocka_unit_test(a_peer_that_falls_behind_gets_a_full_list),
		cmocka_unit_test(a_peer_that_went_has_nothing),
		cmocka_unit_test(a_member_that_leaves_is_forgotten),
		cmocka_unit_test(itself_and_known_peers_are_not_dialled),
		cmocka_unit_test(what_moved_is_told_on_both_sides),
		cmocka_unit_test(a_stranger_is_refused_both_ways),
		cmocka_unit_test(a_wrong_byte_is_never_taken),
		cmocka_unit_test(all_whose_bytes_are_in_it_may_be_wrong),
		cmocka_unit_test(a_large_wrong_value_is_not_taken_either),
		cmocka_unit_test(an_answer_that_makes_no_sense_is_a_failure),
		cmocka_unit_test(a_silent_peer_is_not_waited_for),
		cmocka_unit_test(a_broken_fetch_continues_at_the_next_peer),
		cmocka_unit_test(what_two_peers_sent_counts_once),
		cmocka_unit_test(a_lost_peer_is_not_waited_for),
		cmocka_unit_test(another_value_of_the_same_name_is_not_mixed_in),
		cmocka_unit_test(no_fetch_exceeds_its_budget),
		cmocka_unit_test(a_callback_may_do_anything),
		cmocka_unit_test(a_cancelled_fetch_has_no_callback),
		cmocka_unit_test(a_busy_peer_is_left_for_another),
		cmocka_unit_test(a_peer_that_lost_the_block_is_believed),
		cmocka_unit_test(what_is_computed_faster_is_not_fetched),
		cmocka_unit_test(what_has_no_room_is_handed_over_once),
		cmocka_unit_test(what_is_put_meanwhile_counts),
		cmocka_unit_test(so_many_are_served_at_once),
		cmocka_unit_test(what_could_not_be_read_is_not_owed),
		cmocka_unit_test(what_is_not_wanted_any_more_is_not_owed),
		cmocka_unit_test(the_end_leaves_nothing_behind),
		cmocka_unit_test(what_is_not_understood_is_ended),
		cmocka_unit_test(parts_of_a_value_are_served),
		cmocka_unit_test(what_must_stay_is_not_sent_to_other_sites),
		cmocka_unit_test(a_refused_client_is_not_reset),
	};
	return cmocka_run_group_tests(tests, make_tls, drop_tls);
}
