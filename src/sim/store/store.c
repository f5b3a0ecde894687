/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/store/store.h"

#include <stdlib.h>

#include "base/log/log.h"
#include "base/mix/mix.h"
#include "joint/kv/kvclient/kvclient.h"

#define STORE_TAG 0x51b057adU
#define LOAD_TAG  0x51b010adU
#define PIECE     4096

_Static_assert(SIM_LOAD_MAX <= KVCLIENT_MAX_KEYS, "one call");

struct waiting { /* A block waiting to be put. */
	struct digest name;
	uint32_t model;
};
struct put {
	struct sim_store *store;
	struct put *next; /* Next in the list of free ones. */
};

struct sim_store {
	uint32_t tag;
	struct sim_store_cfg cfg;
	struct kvclient *client;
	struct waiting *queue; /* Ring of SIM_STORE_QUEUE. */
	uint32_t first, n;
	struct put puts[SIM_STORE_PUTS], *free_puts;
	uint32_t under_way;
	uint8_t *value;
	struct sim_store_stats stats;
	uint32_t loads;
};

/* ---- values ---- */

void sim_store_value(const struct digest *name, uint64_t off, void *out, size_t n)
{
	uint64_t word[DIGEST_BYTES / sizeof(uint64_t)];
	memcpy(word, name, sizeof word);
	CGN_MUST(off % sizeof *word == 0);
	for (uint64_t i = off / sizeof *word; n > 0; i++) {
		uint64_t v = mix64(word[i % CGN_COUNT(word)] + i * MIX_GOLDEN);
		size_t part = n < sizeof v ? n : sizeof v;
		memcpy(out, &v, part);
		out = (char *)out + part;
		n -= part;
	}
}

bool sim_store_value_matches(const struct digest *name, const struct iovec *iov, size_t n_iov)
{
	uint8_t want[PIECE];
	uint64_t at = 0;
	for (size_t i = 0; i < n_iov; i++) {
		for (size_t k = 0; k < iov[i].iov_len;) {
			size_t in_piece = at % PIECE, part = iov[i].iov_len - k;
			part = part < PIECE - in_piece ? part : PIECE - in_piece;
			if (in_piece == 0 || k == 0)
				sim_store_value(name, at - in_piece, want, PIECE);
			if (memcmp(want + in_piece, (const char *)iov[i].iov_base + k, part) != 0)
				return false;
			k += part;
			at += part;
		}
	}
	return true;
}

/* ---- connection ---- */

static void pump_puts(struct sim_store *s);

static void on_state(void *user, bool ready, const struct cgn_err *why)
{
	struct sim_store *s = user;
	CGN_LIVE(s, STORE_TAG);
	if (ready)
		cgn_log(INFO, "sim.kv_store", F_STR("uds", s->cfg.uds), F_STR("is", "there"));
	else
		cgn_log(WARN, "sim.kv_store", F_STR("uds", s->cfg.uds), F_STR("is", "not there"),
			F_STR("why", why->msg), F_STR("then", "prompts are computed"));
	if (!ready) {
		s->stats.not_put += s->n;
		s->n = 0;
	}
}

struct sim_store *sim_store_new(struct cgn_loop *l, const struct sim_store_cfg *cfg)
{
	CGN_MUST(cfg->block_bytes > 0 && cfg->block_bytes <= SIM_STORE_BYTES);
	struct sim_store *s = CGN_NEW(struct sim_store);
	*s = (struct sim_store){.tag = STORE_TAG, .cfg = *cfg};
	for (size_t i = 0; i < SIM_STORE_PUTS; i++) {
		s->puts[i] = (struct put){s, s->free_puts};
		s->free_puts = &s->puts[i];
	}
	s->queue = CGN_NEW_ARRAY(struct waiting, SIM_STORE_QUEUE);
	s->value = CGN_NEW_ARRAY(uint8_t, cfg->block_bytes);
	const struct kvclient_cfg c = {.uds = cfg->uds,
		.timeout = SIM_STORE_TIMEOUT,
		.on_state = on_state,
		.user = s};
	s->client = kvclient_new(l, &c);
	return s;
}

void sim_store_free(struct sim_store **take)
{
	struct sim_store *s = CGN_TAKE_LIVE(take, STORE_TAG);
	if (s == NULL)
		return;
	CGN_MUST(s->loads == 0);
	kvclient_free(&s->client);
	s->tag = 0;
	free(s->queue);
	free(s->value);
	free(s);
}

struct sim_store_stats sim_store_stats(const struct sim_store *s)
{
	if (s == NULL)
		return (struct sim_store_stats){0};
	CGN_LIVE(s, STORE_TAG);
	struct sim_store_stats stats = s->stats;
	stats.ready = kvclient_ready(s->client);
	return stats;
}

/* ---- puts ---- */

static void put_done(void *user, const struct kvclient_answer *a)
{
	struct put *p = user;
	struct sim_store *s = p->store;
	CGN_LIVE(s, STORE_TAG);
	s->stats.put += a->err->code == CGN_FINE;
	s->stats.had += a->err->code == CGN_CONFLICT;
	s->stats.put_failed += a->err->code != CGN_FINE && a->err->code != CGN_CONFLICT;
	p->next = s->free_puts;
	s->free_puts = p;
	s->under_way--;
	pump_puts(s);
}

static bool put_one(struct sim_store *s, const struct waiting *w)
{
	struct put *p = s->free_puts;
	struct iovec iov = {s->value, s->cfg.block_bytes};
	const struct block_key key = {.digest = w->name};
	const struct block_meta meta = {.model = cgn_str_of(s->cfg.models[w->model]),
		.tokens = s->cfg.block_tokens};
	const struct kvclient_source from = {.iov = &iov, .n_iov = 1, .fd = -1, .length = iov.iov_len};
	sim_store_value(&w->name, 0, s->value, s->cfg.block_bytes);
	if (!cgn_ok(kvclient_put(s->client, &key, &meta, &from, true, put_done, p, NULL, NULL)))
		return false;
	s->free_puts = p->next;
	s->under_way++;
	return true;
}

/* True when another put may start. One put may always be in flight. */
static bool has_room(const struct sim_store *s)
{
	return s->free_puts != NULL && (s->under_way + 1) * (uint64_t)s->cfg.block_bytes <= SIM_STORE_BYTES;
}

static void pump_puts(struct sim_store *s)
{
	while (s->n > 0 && has_room(s)) {
		const struct waiting w = s->queue[s->first];
		s->first = (s->first + 1) % SIM_STORE_QUEUE;
		s->n--;
		s->stats.put_failed += !put_one(s, &w);
	}
}

void sim_store_put(struct sim_store *s, const struct enginemodel_run *run)
{
	CGN_LIVE(s, STORE_TAG);
	CGN_MUST(run->contents != NULL);
	for (uint32_t i = run->from + run->n; i-- > run->from;) {
		if (!kvclient_ready(s->client) || s->n == SIM_STORE_QUEUE) {
			s->stats.not_put++;
			continue;
		}
		s->queue[(s->first + s->n++) % SIM_STORE_QUEUE] =
			(struct waiting){run->contents->names[i], run->contents->model};
	}
	pump_puts(s);
}

/* ---- loads ---- */

struct part {                    /* Blocks of one range. */
	uint32_t from, first, n; /* |first| indexes the keys; |n| shrinks to the number of blocks found. */
};
struct get {
	struct sim_load *load;
	struct kvclient_call *call; /* NULL: none. */
	uint32_t part, at;          /* Part and key of this call. */
};
struct sim_load {
	uint32_t tag;
	struct sim_store *store;
	void (*done)(void *user);
	void *user;
	struct kvclient_call *lookup;
	struct get gets[SIM_LOAD_GETS];
	uint32_t under_way, n_parts, n_keys, at_part, at; /* |at_part| and |at|: the next block to read. */
	struct part *parts;
	struct block_key *keys;
	uint8_t *tiers;
};

static void load_drop(struct sim_load *load)
{
	free(load->parts);
	free(load->keys);
	free(load->tiers);
	load->tag = 0;
	free(load);
}

void sim_load_free(struct sim_load **take)
{
	struct sim_load *load = CGN_TAKE_LIVE(take, LOAD_TAG);
	if (load == NULL)
		return;
	kvclient_call_cancel(&load->lookup);
	for (size_t i = 0; i < SIM_LOAD_GETS; i++)
		kvclient_call_cancel(&load->gets[i].call);
	load->store->loads--;
	load_drop(load);
}

uint32_t sim_load_got(const struct sim_load *load, uint32_t i, uint32_t *from)
{
	CGN_LIVE(load, LOAD_TAG);
	CGN_MUST(i < load->n_parts);
	*from = load->parts[i].from;
	return load->parts[i].n;
}

static void pump_gets(struct sim_load *load);

/* Return the fastest of the tiers that have the block. */
static enum block_tier tier_of(unsigned tiers)
{
	enum block_tier t = BLOCK_RAM;
	while (t < BLOCK_REMOTE && (tiers & BLOCK_TIER_BIT(t)) == 0)
		t++;
	return t;
}

static bool is_right(const struct get *g, const struct kvclient_lease *lease)
{
	size_t n = 0;
	const struct iovec *iov = kvclient_lease_iov(lease, &n);
	return kvclient_lease_info(lease)->size == g->load->store->cfg.block_bytes &&
		sim_store_value_matches(&g->load->keys[g->at].digest, iov, n);
}

static void on_got(void *user, const struct kvclient_answer *a)
{
	struct get *g = user;
	struct sim_load *load = g->load;
	CGN_LIVE(load, LOAD_TAG);
	struct sim_store_stats *stats = &load->store->stats;
	struct part *p = &load->parts[g->part];
	struct kvclient_lease *lease = a->lease;
	bool there = a->err->code == CGN_FINE, right = there && is_right(g, lease);
	kvclient_lease_release(&lease);
	g->call = NULL;
	load->under_way--;
	stats->lost += !there;
	stats->wrong += there && !right;
	stats->loaded[tier_of(load->tiers[g->at])] += right;
	if (there && !right)
		cgn_log(ERROR, "sim.kv_wrong", F_U64("digest", digest_short(&load->keys[g->at].digest)),
			F_STR("then", "the block is computed"));
	if (!right && g->at - p->first < p->n)
		p->n = g->at - p->first; /* Blocks behind a failed one are useless. */
	pump_gets(load);
}

static struct get *free_get(struct sim_load *load)
{
	for (size_t i = 0; i < SIM_LOAD_GETS; i++) {
		if (load->gets[i].call == NULL)
			return &load->gets[i];
	}
	return NULL;
}

/* Return the number of blocks that must be computed when the part's next block is missing: the rest of its
 * range. */
static uint32_t worth_of(const struct sim_load *load, const struct part *p)
{
	double ms = load->store->cfg.block_ms * (p->n - load->at);
	return !(ms > 0) ? KVCLIENT_WHATEVER : ms < 1 ? 1 : ms < 1e6 ? (uint32_t)ms : (uint32_t)1e6;
}

static void pump_gets(struct sim_load *load)
{
	while (load->under_way < SIM_LOAD_GETS && load->at_part < load->n_parts) {
		struct part *p = &load->parts[load->at_part];
		struct get *g = free_get(load);
		if (load->at >= p->n) {
			load->at_part++;
			load->at = 0;
			continue;
		}
		*g = (struct get){.load = load, .part = load->at_part, .at = p->first + load->at};
		if (cgn_ok(kvclient_get(load->store->client, &load->keys[g->at], worth_of(load, p),
			    (struct cgn_str){0}, on_got, g, &g->call, NULL))) {
			load->under_way++;
			load->at++;
		} else {
			load->store->stats.lost++;
			p->n = load->at;
		}
	}
	if (load->under_way == 0)
		load->done(load->user);
}

static void looked_up(void *user, const struct kvclient_answer *a)
{
	struct sim_load *load = user;
	CGN_LIVE(load, LOAD_TAG);
	load->lookup = NULL;
	for (uint32_t i = 0; i < load->n_keys; i++)
		load->tiers[i] = (uint8_t)(i < a->n && a->err->code == CGN_FINE ? a->infos[i].tiers : 0);
	for (uint32_t i = 0; i < load->n_parts; i++) {
		struct part *p = &load->parts[i];
		uint32_t there = 0;
		while (there < p->n && load->tiers[p->first + there] != 0)
			there++;
		p->n = there;
	}
	pump_gets(load);
}

static bool fill_keys(struct sim_load *load, const struct sim_load_range *wants)
{
	for (uint32_t i = 0; i < load->n_parts; i++) {
		uint32_t room = SIM_LOAD_MAX - load->n_keys, n = wants[i].n < room ? wants[i].n : room;
		load->parts[i] = (struct part){wants[i].from, load->n_keys, n};
		for (uint32_t k = 0; k < n; k++)
			load->keys[load->n_keys++] =
				(struct block_key){.digest = wants[i].names[wants[i].from + k]};
	}
	return load->n_keys > 0;
}

bool sim_load_new(struct sim_store *s, const struct sim_load_range *wants, uint32_t n,
	void (*done)(void *user), void *user, struct sim_load **out)
{
	uint64_t keys = 0;
	for (uint32_t i = 0; i < n; i++)
		keys += wants[i].n;
	if (s == NULL || keys == 0 || !kvclient_ready(s->client))
		return false;
	keys = keys < SIM_LOAD_MAX ? keys : SIM_LOAD_MAX;
	struct sim_load *load = CGN_NEW(struct sim_load);
	*load = (struct sim_load){.tag = LOAD_TAG, .store = s, .done = done, .user = user, .n_parts = n};
	load->parts = CGN_NEW_ARRAY(struct part, n);
	load->keys = CGN_NEW_ARRAY(struct block_key, keys);
	load->tiers = CGN_NEW_ARRAY(uint8_t, keys);
	bool ok = fill_keys(load, wants) &&
		cgn_ok(kvclient_lookup(s->client, load->keys, load->n_keys, true, (struct cgn_str){0},
			looked_up, load, &load->lookup, NULL));
	if (!ok) {
		load_drop(load);
		return false;
	}
	s->loads++;
	s->stats.asked += load->n_keys;
	*out = load;
	return true;
}
