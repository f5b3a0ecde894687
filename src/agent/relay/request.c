/* SPDX-License-Identifier: Apache-2.0 */
/* request: the request for the engine. */
#include "agent/relay/relay_priv.h"

#include "base/log/log.h"

bool relay_is_prefill(const struct relay *r)
{
	return r->placement.leg == COGNITORA__V1__LEG__LEG_PREFILL;
}

/* ---- the slot ---- */

bool relay_computes(struct cgn_str path)
{
	static const char *const others[] = {"/tokenize", "/detokenize", "/apply-template", "/props"};
	struct cgn_str bare = cgn_str_split(&path, '?');
	for (size_t i = 0; i < CGN_COUNT(others); i++)
		if (cgn_str_is(bare, others[i]))
			return false;
	return true;
}

/* Return true once a request had an owner: the agent chooses the slots of all requests from then on. */
static bool tenants_known(struct engine *e, uint64_t owner)
{
	if (!e->has_tenants && owner != 0 && e->mixes_slots)
		cgn_log(WARN, "engine.mixes_tenants", F_STR("engine", e->name),
			F_STR("why", "llama-server keeps prompts of all tenants in one cache (--cache-ram)"),
			F_STR("then",
				"each prompt of a tenant is computed from its beginning; engine.cache_ram = \"off\" changes that"));
	e->has_tenants = e->has_tenants || owner != 0;
	return e->has_tenants;
}

void relay_settle(struct relay *r)
{
	struct engine *e = r->engine;
	const struct slot_placement *p = &r->placement;
	r->slot = p->slot;
	if (e->tenancy == NULL || !relay_computes(relay_request(r)->path))
		return;
	if (!tenants_known(e, p->at.owner))
		return;
	slot_tenancy_size(e->tenancy, e->view.load.now.slots);
	r->guest = (struct slot_guest){.owner = p->at.owner,
		.chain = relay_request(r)->facts.chain,
		.n = relay_request(r)->facts.n_chain,
		.slot = p->slot};
	if (p->at.placeable && !slotmgr_assigns(e->slots))
		r->slot = r->guest.slot = slot_tenancy_choose(e->tenancy, &r->guest);
	bool reuses = slot_tenancy_enter(e->tenancy, &r->guest, p->restored, cgn_clock_now());
	r->computes = e->mixes_slots || !reuses;
	r->is_guest = true;
}

void relay_unsettle(struct relay *r)
{
	if (r->is_guest)
		slot_tenancy_leave(r->engine->tenancy, &r->guest, r->answered_at == 0, cgn_clock_now());
	r->is_guest = false;
}

/* ---- the body ---- */

static size_t prefill_body(struct relay *r, struct iovec *out)
{
	if (r->own.n == 0) {
		slot_body_prefill(relay_request(r)->path, relay_request(r)->body, r->slot, !r->computes,
			&r->own);
		grpc_budget_add(r->all->budget, r->own.n);
		r->booked += r->own.n;
	}
	*out = (struct iovec){r->own.p, r->own.n};
	return 1;
}

static size_t piece_add(struct iovec *out, size_t n, struct cgn_str piece)
{
	union { /* iovec has no const */
		const char *in;
		void *out;
	} bytes = {.in = piece.p};
	if (piece.n == 0)
		return n;
	out[n] = (struct iovec){bytes.out, piece.n};
	return n + 1;
}

size_t relay_request_body(struct relay *r, struct iovec out[RELAY_BODY_PIECES])
{
	const struct slot_body *at = &r->placement.at;
	struct cgn_str rest = relay_request(r)->body;
	size_t n = 0;
	if (relay_is_prefill(r) && r->slot != SLOTS_NONE)
		return prefill_body(r, out);
	if (r->slot != SLOTS_NONE) {
		size_t bytes = slot_body_insert(at, r->slot, r->insert);
		n = piece_add(out, n, (struct cgn_str){rest.p, at->at});
		n = piece_add(out, n, (struct cgn_str){r->insert, bytes});
		rest = (struct cgn_str){rest.p + at->at, rest.n - at->at};
	}
	if (r->computes && at->end > 0) {
		size_t before = (size_t)(relay_request(r)->body.p + at->end - rest.p);
		n = piece_add(out, n, (struct cgn_str){rest.p, before});
		n = piece_add(out, n, slot_body_forbid_reuse(at));
		rest = (struct cgn_str){rest.p + before, rest.n - before};
	}
	return piece_add(out, n, rest);
}
