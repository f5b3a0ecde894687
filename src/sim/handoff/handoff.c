/* SPDX-License-Identifier: Apache-2.0 */
/* handoff: the side that gives. */
#include <stdlib.h>

#include "sim/handoff/handoff_priv.h"

#define HANDOFF_TAG 0x51b0a4d0U

struct offer {
	struct cgn_link link;
	char id[SIM_HANDOFF_ID_MAX + 1];
	bool ready;
	cgn_nsec expires;
	uint32_t n;
	struct digest names[];
};

struct sim_handoff *sim_handoff_new(struct cgn_loop *l, const struct sim_cfg *cfg, uint64_t engine_id)
{
	struct sim_handoff *h = CGN_NEW(struct sim_handoff);
	h->tag = HANDOFF_TAG;
	h->loop = l;
	h->cfg = cfg;
	(void)snprintf(h->engine, sizeof h->engine, "sim-%016llx", (unsigned long long)engine_id);
	cgn_list_init(&h->offers);
	return h;
}

static void offer_free(struct sim_handoff *h, struct offer *o)
{
	cgn_list_drop(&o->link);
	h->n_offers--;
	free(o);
}

void sim_handoff_free(struct sim_handoff **take)
{
	struct sim_handoff *h = CGN_TAKE_LIVE(take, HANDOFF_TAG);
	if (h == NULL)
		return;
	cgn_list_each_safe (l, &h->offers)
		offer_free(h, CGN_CONTAINER(l, struct offer, link));
	for (uint32_t i = 0; i < h->n_peers; i++) {
		http_client_free(&h->peers[i]->client);
		free(h->peers[i]);
	}
	h->tag = 0;
	free(h);
}

const char *sim_handoff_engine(const struct sim_handoff *h)
{
	return h->engine;
}

static void offers_expire(struct sim_handoff *h, cgn_nsec now)
{
	cgn_list_each_safe (l, &h->offers) {
		struct offer *o = CGN_CONTAINER(l, struct offer, link);
		if (!o->ready || o->expires > now)
			continue;
		h->stats.expired++;
		offer_free(h, o);
	}
}

struct sim_handoff_stats sim_handoff_stats(struct sim_handoff *h, cgn_nsec now)
{
	if (h == NULL)
		return (struct sim_handoff_stats){0};
	offers_expire(h, now);
	return h->stats;
}

void sim_handoff_recomputed(struct sim_handoff *h, const char *why)
{
	h->stats.recomputed++;
	(void)cgn_str_copyz(h->stats.last_failure, sizeof h->stats.last_failure, cgn_str_of(why));
}

static struct offer *offer_find(const struct sim_handoff *h, struct cgn_str id)
{
	cgn_list_each (l, &h->offers) {
		struct offer *o = CGN_CONTAINER(l, struct offer, link);
		if (cgn_str_is(id, o->id))
			return o;
	}
	return NULL;
}

bool sim_offer_begin(struct sim_handoff *h, const char *id, const struct sim_chain *chain)
{
	uint32_t n = chain->contents != NULL ? chain->n : 0;
	sim_offer_drop(h, id);
	if (h->n_offers == SIM_OFFERS_MAX)
		return false;
	struct offer *o = cgn_zeroed(1, sizeof *o + n * sizeof o->names[0], CGN_HERE);
	(void)cgn_str_copyz(o->id, sizeof o->id, cgn_str_of(id));
	o->n = n;
	if (n > 0)
		memcpy(o->names, chain->contents->names, n * sizeof o->names[0]);
	cgn_list_push(&h->offers, &o->link);
	h->n_offers++;
	h->stats.given++;
	return true;
}

void sim_offer_ready(struct sim_handoff *h, const char *id, cgn_nsec now)
{
	struct offer *o = offer_find(h, cgn_str_of(id));
	if (o == NULL)
		return;
	o->ready = true;
	o->expires = now + h->cfg->handoff.lease_ms * CGN_MSEC;
}

void sim_offer_drop(struct sim_handoff *h, const char *id)
{
	struct offer *o = offer_find(h, cgn_str_of(id));
	if (o != NULL)
		offer_free(h, o);
}

/* ---- serving a fetch ---- */

struct fetch_question {
	char id[SIM_HANDOFF_ID_MAX + 1], engine[HANDOFF_ENGINE_MAX + 1], last[24];
	uint64_t from, n, blocks, block_tokens;
};

static void member_copy(struct json_val doc, const char *key, char *out, size_t size)
{
	struct json_val v;
	out[0] = '\0';
	if (json_get(doc, key, &v) && v.type == JSON_STRING &&
		!cgn_str_copyz(out, size, (struct cgn_str){v.raw.p + 1, v.raw.n - 2}))
		out[0] = '\0';
}

static bool question_read(struct cgn_str text, struct fetch_question *q)
{
	struct json_val doc;
	if (!cgn_ok(json_parse(text, &doc, NULL, NULL)) || doc.type != JSON_OBJECT)
		return false;
	member_copy(doc, "id", q->id, sizeof q->id);
	member_copy(doc, "engine", q->engine, sizeof q->engine);
	member_copy(doc, "last", q->last, sizeof q->last);
	q->from = json_get_u64(doc, "from", 0);
	q->n = json_get_u64(doc, "n", 0);
	q->blocks = json_get_u64(doc, "blocks", 0);
	q->block_tokens = json_get_u64(doc, "block_tokens", 0);
	return q->id[0] != '\0';
}

/* Return why the offer is not the prompt that is asked for; NULL: it is. */
static const char *offer_mismatch(const struct sim_handoff *h, const struct offer *o,
	const struct fetch_question *q)
{
	char last[24] = "";
	if (q->engine[0] != '\0' && strcmp(q->engine, h->engine) != 0)
		return "the engine has another id";
	if (q->block_tokens != h->cfg->block_tokens)
		return "the blocks have another size";
	if (q->blocks > o->n || q->from > q->blocks || q->n != q->blocks - q->from)
		return "the prompt has fewer blocks";
	if (q->blocks > 0)
		(void)snprintf(last, sizeof last, "%016llx",
			(unsigned long long)digest_short(&o->names[q->blocks - 1]));
	return strcmp(last, q->last) == 0 ? NULL : "the prompt is another one";
}

int sim_offer_serve(struct sim_handoff *h, struct cgn_str ask, cgn_nsec now, struct cgn_buf *out,
	const char **why)
{
	struct fetch_question q;
	offers_expire(h, now);
	*why = "no such request";
	if (!question_read(ask, &q))
		return 400;
	struct offer *o = offer_find(h, cgn_str_of(q.id));
	if (o == NULL)
		return 404;
	*why = "not computed yet";
	if (!o->ready)
		return 425;
	*why = offer_mismatch(h, o, &q);
	if (*why != NULL)
		return 409;
	size_t block = h->cfg->kv_block_bytes, bytes = q.n * block;
	*why = "too large, or no memory";
	char *to = bytes <= SIM_FETCH_BYTES ? cgn_buf_room(out, bytes + 1) : NULL;
	if (to == NULL)
		return 413;
	for (uint64_t i = 0; i < q.n; i++)
		sim_store_value(&o->names[q.from + i], 0, to + i * block, block);
	out->n += bytes;
	h->stats.fetched++;
	h->stats.bytes_sent += bytes;
	offer_free(h, o); /* A prompt is fetched once. */
	return 200;
}
