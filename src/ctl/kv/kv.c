/* SPDX-License-Identifier: Apache-2.0 */
/* kv: lists the contents of a node's block store, and reads or changes single blocks. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/pb/pb.h"
#include "base/pb/pb_json.h"
#include "base/sum/sum.h"
#include "ctl/ctl.h"
#include "ctl/kv/text.h"
#include "io/os/disk/disk.h"
#include "joint/ctl/client/client.h"

#define BATCH     1024
#define PUT_CHUNK ((size_t)256 * 1024)

typedef Cognitora__V1__KvEntry entry;

/* ---- an entry as text or JSON ---- */
static void entry_json(const entry *e, struct json_out *o)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {0};
	char sum[20];
	kv_ctl_key_text(e->key, &key);
	(void)snprintf(sum, sizeof sum, "%016llx", (unsigned long long)e->checksum);
	json_open(o, '{');
	json_key_str(o, "key", cgn_buf_view(&key));
	json_key_z(o, "tiers", kv_ctl_tiers(e->tiers));
	json_key_u64(o, "size", e->size);
	json_key_z(o, "checksum", sum);
	pb_json_members(o, e, "model tenant tokens created_unix_ms expires_unix_ms pinned");
	json_close(o, '}');
}

static void entry_line(const entry *e, const char *what, struct cgn_buf *out)
{
	kv_ctl_key_text(e->key, out);
	cgn_buf_fmt(out, " %s: %llu bytes in %s, checksum %016llx%s\n", what, (unsigned long long)e->size,
		kv_ctl_tiers(e->tiers), (unsigned long long)e->checksum, e->pinned ? ", pinned" : "");
}

/* ---- calls ---- */

static CGN_RC store_call(const struct ctl_args *a, struct ctl_call *call, struct cgn_err *err)
{
	CGN_TRY(ctl_timeout(a, 0, &call->timeout, err));
	return ctl_client_call(a, CTL_STORE, call, err);
}

/* Put the key of the command line before the store's NOT_FOUND or CONFLICT. */
static CGN_RC name_key(const struct ctl_args *a, cgn_rc rc, struct cgn_err *err)
{
	return rc.code == CGN_NOT_FOUND || rc.code == CGN_CONFLICT ? cgn_err_of(rc, a->words[0], err) : rc;
}

/* Run a call that is answered with one entry, and print the entry; |what| happened to it. */
static CGN_RC print_entry(const struct ctl_args *a, struct ctl_call *call, const char *what,
	struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) entry *e = NULL;
	struct cgn_buf out = {0};
	struct json_out o = json_out_to(&out);
	call->answer = &cognitora__v1__kv_entry__descriptor;
	call->first = &e;
	CGN_TRY(store_call(a, call, err));
	if (a->json) {
		entry_json(e, &o);
		cgn_buf_char(&out, '\n');
	} else {
		entry_line(e, what, &out);
	}
	return ctl_print(&out, err);
}

static CGN_RC order_entry(const struct ctl_args *a, const char *method, const void *request, const char *what,
	struct cgn_err *err)
{
	struct ctl_call call = {.method = method, .request = request};
	return name_key(a, print_entry(a, &call, what, err), err);
}

/* ---- stats ---- */
static const char *tier_name(Cognitora__V1__KvTier tier)
{
	return kv_ctl_tiers(1U << (unsigned)tier);
}

static void stats_json(const Cognitora__V1__KvStatsResponse *s, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	pb_json_members(&o, s, "node=node_id version uptime_ms quic_address");
	for (size_t i = 0; i < s->n_tiers; i++) {
		json_key(&o, tier_name(s->tiers[i]->tier));
		pb_json_select(&o, s->tiers[i], "blocks bytes value_bytes budget_bytes hits evictions");
	}
	pb_json_members(&o, s, "misses corrupt index_bytes ssd_trouble ssd_failed ssd_aside");
	json_close(&o, '}');
	cgn_buf_char(out, '\n');
}

static void tier_row(struct ctl_table *t, const void *of)
{
	const Cognitora__V1__KvTierStats *s = of;
	CTL_CELL(t, "TIER", "%s", tier_name(s->tier));
	CTL_CELL(t, "BLOCKS", "%llu", (unsigned long long)s->blocks);
	CTL_CELL(t, "BYTES", "%llu", (unsigned long long)s->bytes);
	CTL_CELL(t, "VALUE BYTES", "%llu", (unsigned long long)s->value_bytes);
	CTL_CELL(t, "BUDGET", "%llu", (unsigned long long)s->budget_bytes);
	CTL_CELL(t, "HITS", "%llu", (unsigned long long)s->hits);
	CTL_CELL(t, "EVICTIONS", "%llu", (unsigned long long)s->evictions);
}

static void stats_text(const Cognitora__V1__KvStatsResponse *s, struct ctl_table *table, struct cgn_buf *out)
{
	ctl_table_head(table, tier_row);
	for (size_t i = 0; i < s->n_tiers; i++)
		tier_row(table, s->tiers[i]);
	cgn_buf_fmt(out,
		"node      %s, version %s, up %llu s\npeers     %s\nmisses    %llu\ncorrupt   %llu\nindex     %llu bytes\n",
		ctl_shown(s->node_id), ctl_shown(s->version), (unsigned long long)(s->uptime_ms / 1000),
		s->quic_address[0] != '\0' ? ctl_shown(s->quic_address) : "none can reach it",
		(unsigned long long)s->misses, (unsigned long long)s->corrupt,
		(unsigned long long)s->index_bytes);
	if (s->ssd_trouble[0] != '\0')
		cgn_buf_fmt(out, "ssd       takes no writes: %s\n", ctl_shown(s->ssd_trouble));
	if (s->ssd_failed > 0 || s->ssd_aside > 0)
		cgn_buf_fmt(out, "ssd       %llu blocks not written, %llu files set aside\n",
			(unsigned long long)s->ssd_failed, (unsigned long long)s->ssd_aside);
}

CGN_RC ctl_kv_stats(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Cognitora__V1__KvStatsResponse *s = NULL;
	const Cognitora__V1__KvStatsRequest rq = COGNITORA__V1__KV_STATS_REQUEST__INIT;
	struct ctl_call call = {.method = "Stats",
		.answer = &cognitora__v1__kv_stats_response__descriptor,
		.request = &rq,
		.first = &s};
	struct cgn_buf out = {0};
	struct ctl_table table = {0};
	CGN_TRY(store_call(a, &call, err));
	if (a->json) {
		stats_json(s, &out);
		return ctl_print(&out, err);
	}
	stats_text(s, &table, &out);
	CGN_TRY(ctl_print(&out, err));
	return ctl_table_print(&table, false, err);
}

/* ---- watch, and ls from its first part ---- */
struct list {
	bool json, once;
	bool synced;
	const char *prefix;
	uint64_t limit;
	struct cgn_buf keys, lines; /* |keys|: struct block_key each. |lines|: output. */
};

static void on_listed(void *user, const void *message)
{
	struct list *l = user;
	const Cognitora__V1__KvEvent *ev = message;
	for (size_t i = 0; i < ev->n_changes; i++) {
		const Cognitora__V1__KvKey *m = ev->changes[i]->key;
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
		if (m == NULL || m->digest.len != DIGEST_BYTES || ev->changes[i]->tiers == 0)
			continue;
		kv_ctl_key_text(m, &text);
		if (!cgn_str_starts(cgn_buf_view(&text), l->prefix))
			continue;
		struct block_key k = {.segment = m->segment};
		memcpy(&k.digest, m->digest.data, DIGEST_BYTES);
		cgn_buf_add(&l->keys, &k, sizeof k);
	}
	l->synced |= ev->synced != 0;
}

static bool is_synced(void *user)
{
	const struct list *l = user;
	return l->synced || (l->limit > 0 && l->keys.n / sizeof(struct block_key) >= l->limit);
}

static void entry_row(struct ctl_table *t, const void *of)
{
	const entry *e = of;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {0};
	if (!t->heading)
		kv_ctl_key_text(e->key, &key);
	CTL_CELL(t, "KEY", "%s", cgn_buf_z(&key));
	CTL_CELL(t, "TIERS", "%s", kv_ctl_tiers(e->tiers));
	CTL_CELL(t, "SIZE", "%llu", (unsigned long long)e->size);
	CTL_CELL(t, "TOKENS", "%u", e->tokens);
	CTL_CELL(t, "CREATED UNIX MS", "%llu", (unsigned long long)e->created_unix_ms);
	CTL_CELL(t, "EXPIRES UNIX MS", "%llu", (unsigned long long)e->expires_unix_ms);
	CTL_CELL(t, "PINNED", "%s", e->pinned ? "yes" : "no");
}

static void on_looked_up(void *user, const void *message)
{
	const Cognitora__V1__KvBatchLookupResponse *rs = message;
	for (size_t i = 0; i < rs->n_entries; i++)
		if (rs->entries[i]->tiers != 0)
			entry_row(user, rs->entries[i]);
}

static CGN_RC look_up(struct ctl_client *k, struct block_key *keys, size_t n, cgn_nsec timeout,
	struct ctl_table *rows, struct cgn_err *err)
{
	Cognitora__V1__KvKey m[BATCH], *list[BATCH];
	Cognitora__V1__KvBatchLookupRequest rq = COGNITORA__V1__KV_BATCH_LOOKUP_REQUEST__INIT;
	for (size_t i = 0; i < n; i++) {
		cognitora__v1__kv_key__init(&m[i]);
		m[i].digest = (ProtobufCBinaryData){DIGEST_BYTES, keys[i].digest.b};
		m[i].segment = keys[i].segment;
		list[i] = &m[i];
	}
	rq.keys = list;
	rq.n_keys = n;
	const struct ctl_call call = {.method = "BatchLookup",
		.answer = &cognitora__v1__kv_batch_lookup_response__descriptor,
		.request = &rq,
		.on_answer = on_looked_up,
		.user = rows,
		.timeout = timeout};
	return ctl_client_run(k, &call, err);
}

static CGN_RC look_up_all(struct ctl_client *k, const struct list *l, cgn_nsec timeout,
	struct ctl_table *rows, struct cgn_err *err)
{
	struct block_key *keys = (struct block_key *)(void *)l->keys.p;
	size_t all = l->keys.n / sizeof *keys;
	ctl_table_head(rows, entry_row);
	if (l->limit > 0 && all > l->limit)
		all = l->limit;
	for (size_t at = 0; at < all; at += BATCH)
		CGN_TRY(look_up(k, keys + at, all - at < BATCH ? all - at : BATCH, timeout, rows, err));
	return CGN_OK;
}

static CGN_RC check_prefix(const char *prefix, struct cgn_err *err)
{
	if (prefix[strspn(prefix, "0123456789abcdef:")] != '\0')
		return CGN_FAIL(err, INVALID,
			"no digest begins with \"%.80s\": digests consist of 0 to 9 and a to f; use kv get for a name",
			prefix);
	return CGN_OK;
}

CGN_RC ctl_kv_ls(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(ctl_client_close) struct ctl_client *k = NULL;
	const Cognitora__V1__KvWatchRequest rq = COGNITORA__V1__KV_WATCH_REQUEST__INIT;
	struct list l = {.json = a->json, .prefix = a->n_words > 0 ? a->words[0] : ""};
	struct ctl_table rows = {0};
	struct ctl_call call = {.method = "Watch",
		.answer = &cognitora__v1__kv_event__descriptor,
		.request = &rq,
		.on_answer = on_listed,
		.enough = is_synced,
		.user = &l};
	CGN_TRY(check_prefix(l.prefix, err));
	CGN_TRY(ctl_flag_u64(a, "--limit", 0, UINT64_MAX, &l.limit, err));
	CGN_TRY(ctl_timeout(a, 0, &call.timeout, err));
	CGN_TRY(ctl_client_open(a, CTL_STORE, &k, err));
	cgn_rc rc = ctl_client_run(k, &call, err);
	if (cgn_ok(rc))
		rc = look_up_all(k, &l, call.timeout, &rows, err);
	cgn_buf_fini(&l.keys);
	if (cgn_ok(rc))
		return ctl_table_print(&rows, a->json, err);
	cgn_buf_fini(&rows.text);
	return rc;
}

static void change_line(const struct list *l, const Cognitora__V1__KvChange *c, struct cgn_buf *out)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf key = {0};
	kv_ctl_key_text(c->key, &key);
	if (!l->json) {
		cgn_buf_fmt(out, "%s %s %llu\n", cgn_buf_z(&key),
			c->tiers != 0 ? kv_ctl_tiers(c->tiers) : "gone", (unsigned long long)c->size);
		return;
	}
	struct json_out o = json_out_to(out);
	json_open(&o, '{');
	json_key_str(&o, "key", cgn_buf_view(&key));
	json_key_z(&o, "tiers", kv_ctl_tiers(c->tiers));
	json_key_u64(&o, "size", c->size);
	json_close(&o, '}');
	cgn_buf_char(out, '\n');
}

static void on_changed(void *user, const void *message)
{
	struct list *l = user;
	const Cognitora__V1__KvEvent *ev = message;
	for (size_t i = 0; i < ev->n_changes; i++)
		change_line(l, ev->changes[i], &l->lines);
	l->synced |= ev->synced != 0;
	struct cgn_err err;
	if (!cgn_ok(ctl_print(&l->lines, &err)))
		l->once = l->synced = true; /* The reader of the output is gone. */
}

static bool has_seen_all(void *user)
{
	const struct list *l = user;
	return l->once && l->synced;
}

CGN_RC ctl_kv_watch(const struct ctl_args *a, struct cgn_err *err)
{
	const Cognitora__V1__KvWatchRequest rq = COGNITORA__V1__KV_WATCH_REQUEST__INIT;
	struct list l = {.json = a->json, .once = ctl_switch(a, "--once")};
	const struct ctl_call call = {.method = "Watch",
		.answer = &cognitora__v1__kv_event__descriptor,
		.request = &rq,
		.on_answer = on_changed,
		.enough = has_seen_all,
		.user = &l};
	return name_key(a, ctl_client_call(a, CTL_STORE, &call, err), err);
}

/* ---- get ---- */
struct got {
	struct cgn_buf value;
	uint64_t size, checksum;
	bool has_entry;
};

static void got_fini(struct got *g)
{
	cgn_buf_fini(&g->value);
}

static void on_chunk(void *user, const void *message)
{
	struct got *g = user;
	const Cognitora__V1__KvGetChunk *m = message;
	if (m->entry != NULL) {
		g->has_entry = true;
		g->size = m->entry->size;
		g->checksum = m->entry->checksum;
	}
	cgn_buf_add(&g->value, m->data.data, m->data.len);
}

static CGN_RC check_value(const struct got *g, struct cgn_err *err)
{
	if (g->value.bad)
		return CGN_FAIL(err, NO_MEMORY, "no memory for the value");
	if (!g->has_entry || g->value.n != g->size)
		return CGN_FAIL(err, BAD_GATEWAY, "the store sent %zu bytes of %llu", g->value.n,
			(unsigned long long)g->size);
	if (sum64(g->value.p != NULL ? g->value.p : "", g->value.n) != g->checksum)
		return CGN_FAIL(err, BAD_GATEWAY, "the value from the store does not match its checksum");
	return CGN_OK;
}

static CGN_RC tenant_read(const struct ctl_args *a, char tenant[BLOCK_MAX_TENANT + 1], struct cgn_err *err)
{
	return cgn_str_copyz(tenant, BLOCK_MAX_TENANT + 1, cgn_str_of(ctl_flag(a, "--tenant")))
		? CGN_OK
		: CGN_FAIL(err, INVALID, "--tenant has at most %d bytes", BLOCK_MAX_TENANT);
}

static CGN_RC get_value(const struct ctl_args *a, struct got *g, struct cgn_err *err)
{
	Cognitora__V1__KvGetRequest rq = COGNITORA__V1__KV_GET_REQUEST__INIT;
	struct kv_ctl_key key;
	char tenant[BLOCK_MAX_TENANT + 1];
	kv_ctl_key(a->words[0], &key);
	CGN_TRY(tenant_read(a, tenant, err));
	rq.key = &key.m;
	rq.tenant = tenant;
	rq.peers = ctl_switch(a, "--peers");
	struct ctl_call call = {.method = "Get",
		.answer = &cognitora__v1__kv_get_chunk__descriptor,
		.request = &rq,
		.on_answer = on_chunk,
		.user = g};
	CGN_TRY(name_key(a, store_call(a, &call, err), err));
	return check_value(g, err);
}

CGN_RC ctl_kv_get(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(got_fini) struct got g = {.value = {.limit = BLOCK_MAX_BYTES + 1}};
	const char *to = ctl_flag(a, "--out");
	if (to == NULL && !ctl_switch(a, "--raw") && ctl_is_terminal(STDOUT_FILENO))
		return CGN_FAIL(err, INVALID,
			"a value is bytes, which a terminal may obey: name a file with --out FILE, use a pipe (| xxd), or give --raw");
	CGN_TRY(get_value(a, &g, err));
	return to == NULL ? ctl_print_bytes(&g.value, err)
			  : disk_write_file_atomic(to, cgn_buf_view(&g.value), 0644, err);
}

/* ---- put ---- */
struct putting {
	Cognitora__V1__KvPutHead head;
	struct cgn_str rest;
	bool begun;
};

static bool next_chunk(void *user, struct cgn_buf *out)
{
	struct putting *p = user;
	Cognitora__V1__KvPutChunk m = COGNITORA__V1__KV_PUT_CHUNK__INIT;
	size_t n = p->rest.n < PUT_CHUNK ? p->rest.n : PUT_CHUNK;
	if (p->begun && n == 0)
		return false;
	if (!p->begun)
		m.head = &p->head;
	p->begun = true;
	m.data = (ProtobufCBinaryData){n, NULL};
	memcpy(&m.data.data, &p->rest.p, sizeof p->rest.p); /* Packing does not write to the bytes. */
	pb_pack(&m, out);
	p->rest.p += n;
	p->rest.n -= n;
	return true;
}

static CGN_RC read_value(const char *path, struct cgn_buf *out, struct cgn_err *err)
{
	if (path != NULL)
		return disk_read_file(path, BLOCK_MAX_BYTES, out, err);
	for (;;) {
		char *to = cgn_buf_room(out, 65536);
		ssize_t n = to != NULL ? read(STDIN_FILENO, to, 65536) : 0;
		if (to == NULL || out->n + (size_t)(n > 0 ? n : 0) > BLOCK_MAX_BYTES)
			return CGN_FAIL(err, TOO_LARGE, "more than %llu bytes on standard input",
				(unsigned long long)BLOCK_MAX_BYTES);
		if (n < 0)
			return CGN_FAIL(err, STORAGE, "cannot read standard input: %s", strerror(errno));
		if (n == 0)
			return CGN_OK;
		cgn_buf_grew(out, (size_t)n);
	}
}

struct put_texts {
	char model[BLOCK_MAX_MODEL + 1], tenant[BLOCK_MAX_TENANT + 1];
};

static CGN_RC put_head(const struct ctl_args *a, struct putting *p, struct put_texts *t, struct cgn_err *err)
{
	cgn_nsec ttl = 0;
	uint64_t tokens;
	if (!cgn_str_copyz(t->model, sizeof t->model, cgn_str_of(ctl_flag(a, "--model"))))
		return CGN_FAIL(err, INVALID, "--model has at most %d bytes", BLOCK_MAX_MODEL);
	CGN_TRY(tenant_read(a, t->tenant, err));
	CGN_TRY(ctl_flag_u64(a, "--tokens", 0, UINT32_MAX, &tokens, err));
	CGN_TRY(ctl_flag_duration(a, "--ttl", &ttl, err));
	p->head.size = p->rest.n;
	p->head.checksum = sum64(p->rest.n > 0 ? p->rest.p : "", p->rest.n);
	p->head.model = t->model;
	p->head.tenant = t->tenant;
	p->head.tokens = (uint32_t)tokens;
	p->head.ttl_ms = ttl / CGN_MSEC;
	p->head.only_if_absent = ctl_switch(a, "--if-absent");
	return CGN_OK;
}

static CGN_RC put_value(const struct ctl_args *a, const struct cgn_buf *value, struct cgn_err *err)
{
	struct putting p = {.head = COGNITORA__V1__KV_PUT_HEAD__INIT, .rest = cgn_buf_view(value)};
	struct put_texts texts;
	struct kv_ctl_key key;
	CGN_TRY(put_head(a, &p, &texts, err));
	kv_ctl_key(a->words[0], &key);
	p.head.key = &key.m;
	p.head.name.len = key.name.n;
	memcpy(&p.head.name.data, &key.name.p, sizeof key.name.p);
	struct ctl_call call = {.method = "Put", .next = next_chunk, .user = &p};
	return print_entry(a, &call, "put", err);
}

CGN_RC ctl_kv_put(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf value = {0};
	CGN_TRY(read_value(ctl_flag(a, "--file"), &value, err));
	return put_value(a, &value, err);
}

/* ---- orders ---- */
static CGN_RC pin_block(const struct ctl_args *a, bool pinned, cgn_nsec for_time, struct cgn_err *err)
{
	Cognitora__V1__KvPinRequest rq = COGNITORA__V1__KV_PIN_REQUEST__INIT;
	struct kv_ctl_key key;
	kv_ctl_key(a->words[0], &key);
	rq.key = &key.m;
	rq.pinned = pinned;
	rq.for_ms = for_time / CGN_MSEC;
	return order_entry(a, "Pin", &rq, pinned ? "stays" : "may go", err);
}

CGN_RC ctl_kv_pin(const struct ctl_args *a, struct cgn_err *err)
{
	cgn_nsec for_time = 0;
	CGN_TRY(ctl_flag_duration(a, "--for", &for_time, err));
	return pin_block(a, true, for_time, err);
}

CGN_RC ctl_kv_unpin(const struct ctl_args *a, struct cgn_err *err)
{
	return pin_block(a, false, 0, err);
}

CGN_RC ctl_kv_promote(const struct ctl_args *a, struct cgn_err *err)
{
	Cognitora__V1__KvPromoteRequest rq = COGNITORA__V1__KV_PROMOTE_REQUEST__INIT;
	struct kv_ctl_key key;
	kv_ctl_key(a->words[0], &key);
	char tenant[BLOCK_MAX_TENANT + 1];
	CGN_TRY(tenant_read(a, tenant, err));
	rq.key = &key.m;
	rq.tenant = tenant;
	rq.peers = ctl_switch(a, "--peers");
	return order_entry(a, "Promote", &rq, "is in RAM", err);
}

CGN_RC ctl_kv_rm(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) Cognitora__V1__KvRemoveResponse *rs = NULL;
	Cognitora__V1__KvRemoveRequest rq = COGNITORA__V1__KV_REMOVE_REQUEST__INIT;
	struct kv_ctl_key keys[CTL_MAX_WORDS];
	Cognitora__V1__KvKey *list[CTL_MAX_WORDS];
	for (size_t i = 0; i < a->n_words; i++) {
		kv_ctl_key(a->words[i], &keys[i]);
		list[i] = &keys[i].m;
	}
	rq.keys = list;
	rq.n_keys = a->n_words;
	struct ctl_call call = {.method = "Remove",
		.answer = &cognitora__v1__kv_remove_response__descriptor,
		.request = &rq,
		.first = &rs};
	CGN_TRY(store_call(a, &call, err));
	struct cgn_buf out = {0};
	cgn_buf_fmt(&out, a->json ? "{\"removed\":%u}\n" : "%u removed\n", rs->removed);
	return ctl_print(&out, err);
}
