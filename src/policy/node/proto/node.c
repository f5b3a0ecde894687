/* SPDX-License-Identifier: Apache-2.0 */
/* node: the checks of an agent's description of its node. */
#include "base/json/json.h"
#include "policy/node/engine/engine.h"
#include "policy/node/engine/models.h"
#include "policy/node/handoff/handoff.h"
#include "policy/node/proto/proto_priv.h"

bool proto_node_id_ok(struct cgn_str id)
{
	if (id.n == 0 || id.n > PROTO_MAX_ID)
		return false;
	for (size_t i = 0; i < id.n; i++)
		if (id.p[i] <= ' ' || id.p[i] >= 0x7f || id.p[i] == '/')
			return false;
	return true;
}

static bool address_ok(const char *z)
{
	struct cgn_str s = cgn_str_of(z);
	if (s.n == 0 || s.n > PROTO_MAX_ADDRESS)
		return false;
	for (size_t i = 0; i < s.n; i++)
		if (s.p[i] <= ' ' || s.p[i] >= 0x7f)
			return false;
	const char *colon = strrchr(z, ':');
	return colon != NULL && colon != z && colon[1] != '\0';
}

static bool text_ok(const char *z, size_t max)
{
	struct cgn_str s = cgn_str_of(z);
	return s.n <= max && cgn_utf8_valid(s.p, s.n);
}

static CGN_RC handoff_check(const Cognitora__V1__Handoff *h, struct cgn_err *err)
{
	if (!text_ok(h->kind, 64) || !text_ok(h->terms, HANDOFF_TERMS_MAX) ||
		!text_ok(h->host, HANDOFF_HOST_MAX))
		return CGN_FAIL(err, INVALID, "Handoff: kind, terms or host is not UTF-8 text, or too long");
	if (h->port > UINT16_MAX || h->n_engine_ids > HANDOFF_RANKS_MAX)
		return CGN_FAIL(err, INVALID, "Handoff: port %u, or more than %d engine ids", h->port,
			HANDOFF_RANKS_MAX);
	for (size_t i = 0; i < h->n_engine_ids; i++)
		if (!text_ok(h->engine_ids[i], HANDOFF_ENGINE_MAX))
			return CGN_FAIL(err, INVALID,
				"Handoff.engine_ids: an id is not UTF-8 text, or too long");
	return CGN_OK;
}

/* A card goes into answers of the gateway as it is. */
static bool card_ok(const char *card)
{
	char room[ENGINE_CARD_MAX + 3];
	struct cgn_buf b = cgn_buf_over(room, sizeof room);
	struct json_val doc;
	cgn_buf_fmt(&b, "{%s}", card);
	return !b.bad && cgn_ok(json_parse(cgn_buf_view(&b), &doc, NULL, NULL)) && doc.type == JSON_OBJECT;
}

static CGN_RC facts_check(const Cognitora__V1__Engine *e, struct cgn_err *err)
{
	for (size_t i = 0; i < e->n_facts; i++) {
		const Cognitora__V1__ModelFacts *f = e->facts[i];
		bool after = i == 0 || f->model > e->facts[i - 1]->model;
		if (f->model >= e->n_models || !after || !text_ok(f->state, 64) || !card_ok(f->card))
			return CGN_FAIL(err, INVALID,
				"Engine.facts: the facts number %zu are of no model, or card or state is wrong",
				i);
	}
	return CGN_OK;
}

static CGN_RC engine_check(const Cognitora__V1__Engine *e, struct cgn_err *err)
{
	if (!text_ok(e->name, 128) || !text_ok(e->kind, 64))
		return CGN_FAIL(err, INVALID, "Engine: name or kind is not UTF-8 text, or too long");
	if (!text_ok(e->residency, 512) || !text_ok(e->resume, 64))
		return CGN_FAIL(err, INVALID, "Engine: residency or resume is not UTF-8 text, or too long");
	if (!text_ok(e->served, 512))
		return CGN_FAIL(err, INVALID, "Engine.served: over 512 bytes or no UTF-8");
	if (e->n_models > PROTO_MAX_MODELS)
		return CGN_FAIL(err, INVALID, "Engine.models: %zu models, at most %d are taken", e->n_models,
			PROTO_MAX_MODELS);
	for (size_t i = 0; i < e->n_models; i++)
		if (e->models[i][0] == '\0' || !text_ok(e->models[i], ENGINE_NAME_MAX))
			return CGN_FAIL(err, INVALID,
				"Engine.models: a name that is empty, over %d bytes or no UTF-8",
				ENGINE_NAME_MAX);
	CGN_TRY(facts_check(e, err));
	const Cognitora__V1__Direct *d = e->direct;
	if (d != NULL &&
		(!address_ok(d->address) || cgn_str_starts(cgn_str_of(d->address), "unix:") ||
			!text_ok(d->host, PROTO_MAX_ID)))
		return CGN_FAIL(err, INVALID, "Engine.direct: address must be host:port, host a short text");
	if (e->n_adapters > PROTO_MAX_ADAPTERS)
		return CGN_FAIL(err, INVALID, "Engine: more than %d adapters", PROTO_MAX_ADAPTERS);
	for (size_t i = 0; i < e->n_adapters; i++)
		if (e->adapters[i]->name[0] == '\0' || !text_ok(e->adapters[i]->name, 512) ||
			!text_ok(e->adapters[i]->state, 64) || !text_ok(e->adapters[i]->why, 1024))
			return CGN_FAIL(err, INVALID,
				"Engine.adapters: name, state or why is not UTF-8 text, or too long");
	if (e->rest != NULL && (!text_ok(e->rest->state, 64) || !text_ok(e->rest->why, 1024)))
		return CGN_FAIL(err, INVALID, "Engine.rest: state or why is not UTF-8 text, or too long");
	if (e->swap != NULL && (!text_ok(e->swap->state, 64) || !text_ok(e->swap->why, 1024)))
		return CGN_FAIL(err, INVALID, "Engine.swap: state or why is not UTF-8 text, or too long");
	if (e->chain != NULL && !text_ok(e->chain->model, 512))
		return CGN_FAIL(err, INVALID, "Engine.chain: model is not UTF-8 text, or too long");
	return e->handoff != NULL ? handoff_check(e->handoff, err) : CGN_OK;
}

CGN_RC proto_store_check(const char *id, const Cognitora__V1__KvStore *kv, struct cgn_err *err)
{
	if (!address_ok(kv->quic_address) || cgn_str_starts(cgn_str_of(kv->quic_address), "unix:"))
		return CGN_FAIL(err, INVALID, "KvStore.quic_address of %s: must be host:port", id);
	if (!text_ok(kv->rack, PROTO_MAX_PLACE) || !text_ok(kv->region, PROTO_MAX_PLACE))
		return CGN_FAIL(err, INVALID,
			"KvStore of %s: rack or region is not UTF-8 text of at most %d bytes", id,
			PROTO_MAX_PLACE);
	return CGN_OK;
}

CGN_RC proto_node_check(const Cognitora__V1__Node *n, struct cgn_err *err)
{
	if (!proto_node_id_ok(cgn_str_of(n->id)))
		return CGN_FAIL(err, INVALID, "Node.id: must be 1 to %d visible ASCII characters without '/'",
			PROTO_MAX_ID);
	if (n->store_address[0] != '\0' && !address_ok(n->store_address))
		return CGN_FAIL(err, INVALID, "Node.store_address of %s: must be host:port", n->id);
	if (!address_ok(n->address))
		return CGN_FAIL(err, INVALID, "Node.address of %s: must be host:port or unix:/path", n->id);
	if (!text_ok(n->version, 128))
		return CGN_FAIL(err, INVALID, "Node.version of %s: no short UTF-8 text", n->id);
	if (n->n_engines > PROTO_MAX_ENGINES)
		return CGN_FAIL(err, INVALID, "Node.engines of %s: %zu engines, at most %d are taken", n->id,
			n->n_engines, PROTO_MAX_ENGINES);
	for (size_t i = 0; i < n->n_engines; i++)
		CGN_TRY(engine_check(n->engines[i], err));
	return n->kv != NULL ? proto_store_check(n->id, n->kv, err) : CGN_OK;
}

Cognitora__V1__Node *proto_node_dup(const Cognitora__V1__Node *n)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	Cognitora__V1__Node *copy = NULL;
	pb_pack(n, &b);
	if (b.bad || !cgn_ok(pb_unpack(&cognitora__v1__node__descriptor, cgn_buf_view(&b), &copy, NULL)))
		return NULL;
	return copy;
}

bool proto_node_equal(const Cognitora__V1__Node *a, const Cognitora__V1__Node *b)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf left = {.n = 0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf right = {.n = 0};
	pb_pack(a, &left);
	pb_pack(b, &right);
	return !left.bad && !right.bad && cgn_str_eq(cgn_buf_view(&left), cgn_buf_view(&right));
}

void proto_node_free(Cognitora__V1__Node **take)
{
	pb_free(take);
}

/* ---- signs of life ---- */

static uint32_t ms_of(cgn_nsec t)
{
	uint64_t ms = t / CGN_MSEC;
	return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

void proto_load_witness(Cognitora__V1__Load *l, const struct pulse_witness *w)
{
	uint32_t still_ms = ms_of(w->still);
	l->mute_ms = ms_of(w->mute);
	l->still_ms = still_ms < UINT32_MAX ? still_ms + 1 : 0;
}

struct pulse_witness proto_witness_of(const Cognitora__V1__Load *l)
{
	return (struct pulse_witness){.mute = l->mute_ms * CGN_MSEC,
		.still = l->still_ms > 0 ? (l->still_ms - 1) * CGN_MSEC : UINT64_MAX};
}
