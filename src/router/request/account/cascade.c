/* SPDX-License-Identifier: Apache-2.0 */
/* cascade: the tokens that a cascade saves and wastes. */
#include "router/request/request/cascade.h"
#include "router/request/account/account.h"
#include "router/request/account/usage.h"

struct cgn_str gw_used_dearest(const struct gw_req *r)
{
	const struct gw_cascade *c = r->plan.cascade;
	return c != NULL ? c->chain.models[c->chain.n - 1] : r->prompt.model;
}

static uint64_t wasted_money(const struct gw_req *r, unsigned step)
{
	const struct gw_cascade *c = r->plan.cascade;
	const struct gw_wasted *w = &c->wasted[step];
	return gw_used_price(r, c->chain.models[step], w->input, w->cached, w->output);
}

struct gw_used gw_used_all(const struct gw_req *r)
{
	const struct gw_cascade *c = r->plan.cascade;
	struct gw_used used = gw_used_of(r);
	for (unsigned i = 0; c != NULL && i < c->chain.n; i++) {
		used.input += c->wasted[i].input;
		used.cached += c->wasted[i].cached;
		used.output += c->wasted[i].output;
		used.money += wasted_money(r, i);
	}
	return used;
}

uint64_t gw_used_wasted(const struct gw_req *r)
{
	const struct gw_cascade *c = r->plan.cascade;
	uint64_t n = 0;
	for (unsigned i = 0; c != NULL && i < c->chain.n; i++)
		n += c->wasted[i].input + c->wasted[i].output;
	return n;
}

static void money_count(struct gw_req *r, const char *kind, uint64_t amount)
{
	gw_money_add(r->w, METRIC_OF(r->w->shared->telemetry, CASCADE_MONEY, kind), amount);
}

/* The tokens of an answer that was not shown count for its model, and for no request. */
static void wasted_count(struct gw_req *r, unsigned step)
{
	const struct gw_cascade *c = r->plan.cascade;
	const struct gw_wasted *w = &c->wasted[step];
	uint64_t money = wasted_money(r, step);
	const struct billing_names names = {gw_identity_label(&r->identity),
		cgn_str_of(r->identity.key_id != NULL ? r->identity.key_id : "-"), c->chain.models[step]};
	const struct billing_amounts more = {.input = w->input,
		.cached = w->cached,
		.output = w->output,
		.money = money};
	if (w->input + w->output == 0)
		return;
	if (r->w->shared->usage != NULL && r->identity.tenant.n > 0)
		gw_usage_add(r->w->shared->usage, &names, &more, NULL);
	metric_add(METRIC_OF(r->w->shared->telemetry, CASCADE_WASTED, names.model.p, "prompt"), w->input);
	metric_add(METRIC_OF(r->w->shared->telemetry, CASCADE_WASTED, names.model.p, "completion"),
		w->output);
	money_count(r, "wasted", money);
}

void gw_cascade_count(struct gw_req *r)
{
	const struct gw_cascade *c = r->plan.cascade;
	if (c == NULL)
		return;
	for (unsigned i = 0; i < c->chain.n; i++)
		wasted_count(r, i);
	const struct gw_used used = gw_used_of(r);
	uint64_t large = gw_used_price(r, gw_used_dearest(r), used.input, used.cached, used.output);
	if (large > used.money)
		money_count(r, "saved", large - used.money);
}
